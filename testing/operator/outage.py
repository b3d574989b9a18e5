"""A control plane that ends and comes back, with its data or with an older copy of them."""

import contextlib
import dataclasses
import os
import pathlib
import shutil
import signal
import socket
from collections.abc import Iterator, Mapping, Sequence

from testing.cluster import controlplane, handle, process, state

SERVERS = ("etcd", "kube-apiserver")
"""In the order in which they start."""

PORTS = {"etcd": "--listen-client-urls=", "kube-apiserver": "--secure-port="}
LIMIT_SECONDS = controlplane.START_LIMIT_SECONDS


def restart(cluster: handle.Cluster) -> None:
    """Kill the API server, as when its node is updated; return when it is ready again."""
    with _stopped(cluster, ("kube-apiserver",)):
        pass


def back_up(cluster: handle.Cluster, copy: pathlib.Path) -> None:
    """Copy the folder of etcd while nothing writes to it; the cluster runs afterwards."""
    with _stopped(cluster, SERVERS):
        shutil.copytree(cluster.directory / "etcd", copy)


def restore(cluster: handle.Cluster, copy: pathlib.Path) -> None:
    """Restart the cluster from a copy of its etcd's folder."""
    with _stopped(cluster, SERVERS):
        shutil.rmtree(cluster.directory / "etcd")
        shutil.copytree(copy, cluster.directory / "etcd")


@contextlib.contextmanager
def _stopped(cluster: handle.Cluster, names: Sequence[str]) -> Iterator[None]:
    """Kill some processes, and start them again; return when the API server is ready."""
    cluster_state = state.load(cluster.directory)
    assert cluster_state is not None
    records = {record.name: record for record in cluster_state.processes if record.name in names}
    commands = {name: _command(records[name]) for name in names}
    for name in reversed(names):
        os.kill(records[name].pid, signal.SIGKILL)
    for name in names:
        _wait_for_port(name, commands)
    yield
    others = tuple(record for record in cluster_state.processes if record.name not in names)
    ledger = state.Ledger(cluster.directory, dataclasses.replace(cluster_state, processes=others))
    for name in names:
        ledger.start(name, commands[name])
    ledger.wait_until("the API server", lambda: controlplane.answers(cluster), LIMIT_SECONDS)


def _command(record: process.Record) -> Sequence[str]:
    return pathlib.Path(f"/proc/{record.pid}/cmdline").read_text().rstrip("\0").split("\0")


def _wait_for_port(name: str, commands: Mapping[str, Sequence[str]]) -> None:
    [address] = [part for part in commands[name] if part.startswith(PORTS[name])]
    port = int(address.rpartition("=")[2].rpartition(":")[2])
    process.wait_until("its port to be free", lambda: _is_free(port), (), LIMIT_SECONDS)


def _is_free(port: int) -> bool:
    """Whether all threads of the process that listened there are gone."""
    try:
        socket.create_server((controlplane.LOOPBACK, port)).close()
    except OSError:
        return False
    return True
