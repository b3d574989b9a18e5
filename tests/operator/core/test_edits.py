"""What an edit of a running job does: the table in docs/life.md, row by row."""

import copy
from typing import Any

import pytest

from testing import pages
from testing.operator import builders
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import build, replicas, scaling

IMAGE = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "newer"}]}}}

EDITS: dict[str, tuple[str, dict[str, Any]]] = {
    "runPolicy": ("at once", {"runPolicy": {"backoffLimit": 0}}),
    "successPolicy": ("at once", {"successPolicy": "AllWorkers"}),
    "restartPolicy": ("at once", {"tfReplicaSpecs": {"Worker": {"restartPolicy": "Never"}}}),
    "template": ("later pods", {"tfReplicaSpecs": {"Worker": IMAGE}}),
    "devices": ("later pods", {"tfReplicaSpecs": {"Worker": {"devices": 2}}}),
    "scheduling.topologyKeys": ("later pods", {"scheduling": {"topologyKeys": ["zone"]}}),
    "enableDynamicWorker": ("later pods", {"enableDynamicWorker": True}),
    "Worker.replicas with minReplicas or maxReplicas": (
        "a new attempt",
        {"tfReplicaSpecs": {"Worker": {"replicas": 3}}},
    ),
}
"""What may be edited, when it takes effect, and an example."""


def merged(document: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    result = copy.deepcopy(document)
    for key, value in change.items():
        inner = result.get(key)
        result[key] = merged(inner, value) if isinstance(inner, dict) else value
    return result


def edit(world: builders.World, document: dict[str, Any], change: dict[str, Any]) -> None:
    """Apply a change as kubectl does: the status stays, the generation grows."""
    changed = merged(document, {"spec": change, "metadata": {"generation": 2}})
    world.job = load.parse_job(changed).model_copy(update={"status": world.status})


def running() -> tuple[builders.World, dict[str, Any]]:
    document = builders.manifest(worker=2)
    document["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 4
    world = builders.World(load.parse_job(document))
    world.settle()
    world.run()
    world.settle()
    world.advance(3600)
    return world, document


@pytest.mark.parametrize("what", EDITS)
def test_an_edit_takes_effect_when_the_table_says(what: str) -> None:
    when, change = EDITS[what]
    world, document = running()
    before = {name: pod.uid for name, pod in world.pods.items()}
    edit(world, document, change)
    outcome = world.decide()
    world.settle()
    after = {name: pod.uid for name, pod in world.pods.items()}
    assert (world.status.attempt == 2) == (when == "a new attempt")
    if when != "a new attempt":
        assert not outcome.deletions and not outcome.creations
        assert after == before
        assert world.status.observed_generation == 2


@pytest.mark.parametrize("what", [what for what in EDITS if EDITS[what][0] == "later pods"])
def test_pods_that_are_made_later_follow_the_edit(what: str) -> None:
    world, document = running()

    def pod() -> Any:
        worker = replicas.Replica(types.Role.WORKER, 0)
        job = scaling.in_force(world.job, tuple(world.pods.values()))
        return build.pod(job, worker, builders.SETTINGS, attempt=1, replica_attempt=0)

    before = pod()
    edit(world, document, EDITS[what][1])
    assert pod() != before


def test_a_budget_and_a_policy_hold_at_once() -> None:
    world, document = running()
    edit(world, document, {"runPolicy": {"backoffLimit": 0}})
    world.exit("job-worker-1", 1)
    world.settle()
    world.advance(10)
    world.settle()
    assert world.status.state is names.State.FAILED


def test_the_page_has_the_table() -> None:
    listed = {row[0].replace("`", ""): row[1] for row in pages.rows("life.md", "## Edits")}
    refused = {what for what, when in listed.items() if when == "refused"}
    assert refused == {
        *("strategy", "mesh", "trainer", "network", "hostNetwork"),
        *("scheduling.gang", "runPolicy.schedulingPolicy"),
        *("managedBy", "roles and replicas"),
    }
    assert {what: when for what, when in listed.items() if when != "refused"} == {
        what: when for what, (when, _) in EDITS.items()
    }


def test_a_template_may_be_changed_while_the_job_is_suspended() -> None:
    world, document = running()
    edit(world, document, {"runPolicy": {"suspend": True}})
    world.settle()
    assert world.pods == {}
    document = merged(document, {"spec": {"runPolicy": {"suspend": True}}})
    selector = {"spec": {"nodeSelector": {"pool": "a"}, **IMAGE["template"]["spec"]}}
    change = {"tfReplicaSpecs": {"Worker": {"template": selector}}}
    edit(world, document, change)
    world.settle()
    assert world.pods == {}
    document = merged(document, {"spec": change})
    edit(world, document, {"runPolicy": {"suspend": False}})
    manifests = [
        manifest["spec"].get("nodeSelector")
        for manifest in world.decide().creations
        if manifest["kind"] == "Pod"
    ]
    assert manifests == [{"pool": "a"}, {"pool": "a"}]


@pytest.mark.parametrize(
    ("manager", "ours"),
    [
        (None, True),
        ("tfparallel.dev/operator", True),
        ("kueue.x-k8s.io/multikueue", False),
    ],
)
@pytest.mark.parametrize("older", [False, True])
def test_the_job_of_another_manager_is_left_alone(
    manager: str | None, ours: bool, older: bool
) -> None:
    document = builders.manifest(worker=1)
    field = {"managedBy": manager}
    document["spec"] |= {"runPolicy": field} if older else field
    world = builders.World(load.parse_job(document))
    world.settle()
    assert bool(world.pods) is ours
    assert (world.writes > 0) is ours
