"""The operator's role lets it write what it writes, and nothing more."""

import pathlib

import pytest
import yaml

from testing import pages, paths
from testing.operator import objects, scenarios
from testing.operator.memory_cluster import MemoryCluster
from tfparallel_operator.api_server import resources

pytestmark = pytest.mark.usefixtures("long_computation")

ROLE = paths.ROOT / "manifests/base/rbac/jobs.yaml"
READS = {"get", "list", "watch"}
BESIDE_DECISIONS = {
    ("patch", "tfparalleljobs/status"),  # progress, too
    ("update", "tfparalleljobs/finalizers"),  # Asked for by the API server, and never written.
}


def scaled_gang() -> scenarios.Scenario:
    """Return the life of a gang whose group follows the number of workers."""
    job = objects.job(scheduling={"gang": "Coscheduling"}, runPolicy={"scaleCooldownSeconds": 0})
    job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    more_workers = {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}
    return scenarios.Scenario(job, (scenarios.run, scenarios.edit(more_workers)), "Running")


def granted(role: pathlib.Path) -> set[tuple[str, str]]:
    """Return verb and resource of each right of a ClusterRole to write."""
    [document] = [
        document
        for document in yaml.safe_load_all(role.read_text(encoding="utf-8"))
        if document["kind"] == "ClusterRole"
    ]
    return {
        (verb, resource)
        for rule in document["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
        if verb not in READS
    }


async def writes(scenario: scenarios.Scenario) -> set[tuple[str, str]]:
    """Return verb and resource of what the operator writes in the life of a job."""
    cluster = MemoryCluster()
    async with cluster.running(scenario.job):
        for step in (scenarios.quiet, *scenario.steps):
            step(cluster.api)
            await cluster.engine.run_until_quiet()
    written = set()
    for request in cluster.api.log[1:]:
        verb, path = request.split()
        subresource = "/status" if path.endswith("/status") else ""
        written.add((verb, f"{resources.plural_of(path)}{subresource}"))
    return written


async def test_the_role_grants_the_writes_of_all_lives_and_no_other() -> None:
    written = set()
    for scenario in (scaled_gang(), *scenarios.SCENARIOS.values()):
        written |= await writes(scenario)
    assert granted(ROLE) - BESIDE_DECISIONS == written - BESIDE_DECISIONS


def test_the_page_lists_each_right_to_write() -> None:
    rows = pages.rows("operate/isolation.md", "## What the operator may do")
    listed = {(verb, resource) for resource, verbs in rows for verb in verbs.split(", ")}
    assert listed == granted(ROLE)
