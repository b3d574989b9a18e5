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


def up(ledger: state.Ledger, wanted: settings.Light, cluster: handle.Cluster) -> None:
    """Start what was asked for; returns when it can be used."""
    binaries.ensure(binaries.LIGHT + (binaries.OLDER if wanted.older else ()))
    authority = pki.Authority(ledger.directory / "keys")
    plan = controlplane.loopback_plan(wanted)
    controlplane.start(ledger, authority, plan, cluster)
    if wanted.jobs:
        definition = schema.custom_resource_definition()
        cluster.run_kubectl("apply", "--filename=-", input=json.dumps(definition))
        cluster.wait_established(definition["metadata"]["name"])
    if wanted.controllers:
        controlplane.start_controllers(ledger, authority, plan, cluster)
    if wanted.nodes:
        kwok.start(ledger, authority, plan)
        kwok.add_nodes(ledger, cluster, wanted.nodes, wanted.gpus)
    if wanted.coscheduling:
        coscheduling.start(ledger, authority, plan, cluster)
    if wanted.kueue:
        kueue.start(ledger, authority, plan, cluster)


def down(found: state.State, directory: Path) -> None:
    """End the processes, the ones that use another before the one they use."""
    process.stop(reversed(found.processes))
