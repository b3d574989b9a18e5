"""A cluster that runs containers, whole and alone in its own namespaces. Needs root."""

import os
import socket
import sys
from pathlib import Path

from testing.cluster import (
    binaries,
    cgroups,
    console,
    controlplane,
    coredns,
    coscheduling,
    folders,
    handle,
    kuberouter,
    kueue,
    netns,
    node,
    packages,
    pki,
    settings,
    state,
)

API_PORT = 6443


def up(ledger: state.Ledger, cluster_settings: settings.Full, cluster: handle.Cluster) -> None:
    """Start the control plane and the node; returns when pods can run."""
    _require_possible(ledger.directory)
    packages.ensure_node()
    binaries.ensure(binaries.FULL)
    if cluster_settings.policies:
        packages.ensure(kuberouter.COMMANDS)
        binaries.ensure([kuberouter.MODULE])
    authority = pki.Authority(ledger.directory / "keys")
    enter = netns.create(ledger)
    plan = _plan(enter, _start_forwarder(ledger), cluster_settings.gang_scheduling)
    controlplane.start(ledger, authority, plan, cluster)
    controlplane.start_controllers(ledger, authority, plan, cluster)
    coredns.start(ledger, authority, plan, cluster)
    node.start(ledger, authority, plan, cluster)
    node.give_gpus(cluster, cluster_settings.gpus)
    if cluster_settings.policies:
        kuberouter.start(ledger, authority, plan, cluster)
    if cluster_settings.coscheduling:
        coscheduling.start(ledger, authority, plan, cluster)
    if cluster_settings.kueue:
        kueue.start(ledger, authority, plan, cluster)


def down(cluster_state: state.ClusterState, directory: Path) -> None:
    """End everything inside, then remove the control groups, which have no namespace."""
    netns.end(cluster_state)
    cgroups.remove(cgroups.branch(directory))


def _require_possible(directory: Path) -> None:
    if os.geteuid() != 0:
        raise console.ClusterError("The full cluster needs root: namespaces, mounts, containers.")
    for hidden in netns.HIDDEN:
        for needed in (directory, folders.cache()):
            if needed.is_relative_to(hidden):
                raise console.ClusterError(
                    f"{needed} is hidden inside: choose one outside {hidden}"
                )


def _start_forwarder(ledger: state.Ledger) -> int:
    with socket.create_server((controlplane.LOOPBACK, 0)) as listener:
        port = int(listener.getsockname()[1])
        program = [sys.executable, "-I", str(folders.SOURCE / "forwarder.py")]
        target = [str(listener.fileno()), netns.NODE_ADDRESS, str(API_PORT)]
        command = [*netns.enter_network(ledger.state), *program, *target]
        ledger.start("forwarder", command, keep_open=[listener.fileno()])
    return port


def _plan(enter: tuple[str, ...], outside_port: int, gang: bool) -> controlplane.Plan:
    flags = [
        "--bind-address=0.0.0.0",
        f"--advertise-address={netns.NODE_ADDRESS}",
        "--kubelet-preferred-address-types=InternalIP",
    ]
    return controlplane.Plan(
        inside=netns.NODE_ADDRESS,
        port=API_PORT,
        outside_port=outside_port,
        etcd_port=2379,
        etcd_peer_port=2380,
        flags=tuple(flags),
        enter=enter,
        gang_scheduling=gang,
    )
