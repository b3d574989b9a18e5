"""A cluster of control-plane processes on loopback: no root, no containers, up in seconds."""

import json
from pathlib import Path

from testing.cluster import (
    binaries,
    controlplane,
    coscheduling,
    handle,
    kueue,
    kwok,
    pki,
    process,
    settings,
    state,
)
from tfparallel_operator.api import schema


def up(ledger: state.Ledger, cluster_settings: settings.Light, cluster: handle.Cluster) -> None:
    """Start what was asked for; returns when it can be used."""
    binaries.ensure(binaries.of_release(cluster_settings.release, binaries.LIGHT))
    authority = pki.Authority(ledger.directory / "keys")
    plan = controlplane.loopback_plan(cluster_settings)
    controlplane.start(ledger, authority, plan, cluster)
    if cluster_settings.jobs:
        definition = schema.custom_resource_definition()
        cluster.run_kubectl("apply", "--filename=-", input=json.dumps(definition))
        cluster.wait_established(definition["metadata"]["name"])
    if cluster_settings.controllers:
        controlplane.start_controllers(ledger, authority, plan, cluster)
    if cluster_settings.nodes:
        kwok.start(ledger, authority, plan)
        kwok.add_nodes(ledger, cluster, cluster_settings.nodes, cluster_settings.gpus)
    if cluster_settings.coscheduling:
        coscheduling.start(ledger, authority, plan, cluster)
    if cluster_settings.kueue:
        kueue.start(ledger, authority, plan, cluster)


def down(cluster_state: state.ClusterState, directory: Path) -> None:
    """End the processes, the ones that use another before the one they use."""
    process.stop(reversed(cluster_state.processes))
