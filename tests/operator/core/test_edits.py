"""What an edit of each field does to a job in each state: the table in docs/explanation/life.md."""

import copy
import re
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
import yaml

from testing import pages, paths
from testing.operator import builders, edit_effects, edits
from tfparallel_operator.api import load, names

DEFINITION = "manifests/base/crd/tfparallel.dev_tfparalleljobs.yaml"
IMAGE = {"template": {"spec": {"containers": [{"name": "tensorflow", "image": "newer"}]}}}


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
    world.run_until_quiet()
    world.run().run_until_quiet()
    world.advance(3600)
    return world, document


def _leaves(node: Mapping[str, Any], path: str = "") -> Iterator[str]:
    """Yield the fields of a schema that hold values, as the page names them."""
    inner = {**node.get("properties", {}), **_leaves_of_maps(node)}
    inner = {key: inner_node for key, inner_node in inner.items() if not _is_trap(inner_node)}
    if not inner:
        yield path
    for key, inner_node in inner.items():
        yield from _leaves(inner_node, ".".join(filter(None, (path, key))))


def _leaves_of_maps(node: Mapping[str, Any]) -> Mapping[str, Any]:
    values = node.get("additionalProperties", {})
    items: Mapping[str, Any] = node.get("items", {}).get("properties", {})
    return {"<role>": values, **items} if "properties" in values else items


def _is_trap(node: Mapping[str, Any]) -> bool:
    return [rule["rule"] for rule in node.get("x-kubernetes-validations", ())] == ["false"]


def test_no_field_of_the_resource_definition_lacks_a_row() -> None:
    """By the file that is installed, and the page as it is read: each in each state."""
    definition = yaml.safe_load((paths.ROOT / DEFINITION).read_text(encoding="utf-8"))
    [version] = definition["spec"]["versions"]
    fields = set(_leaves(version["schema"]["openAPIV3Schema"]["properties"]["spec"]))
    rows = pages.rows("explanation/life.md", "## Edits")
    named = {name for first, *_ in rows for name in re.findall(r"[\w.<>]+", first)}
    assert len(fields) > 60
    assert not {
        field
        for field in fields
        if not any(field == name or field.startswith(f"{name}.") for name in named)
    }
    for _, *cells in rows:
        assert {*cells} <= {*edit_effects.Effect}
        assert len(cells) == len(edit_effects.LifeStage)


@pytest.mark.parametrize("path", edits.EXAMPLES)
def test_each_example_is_of_a_field(path: edits.Path) -> None:
    assert path in edits.fields()


@pytest.mark.usefixtures("long_computation")
def test_each_edit_has_an_effect_in_some_state() -> None:
    """A new field needs an example, and a probe that shows what it is for."""
    nothing = {edit_effects.Effect.NOTHING}
    no_effect = {
        (path, title)
        for (path, title), row in edit_effects.effects().items()
        if set(row) <= nothing
    }
    assert not no_effect


def test_a_job_that_is_scaled_while_it_is_suspended_begins_one_attempt() -> None:
    trial = edit_effects.build_trial("gang", edit_effects.LifeStage.SUSPENDED)
    trial.edit(("tfReplicaSpecs", "<role>", "replicas"), 3)
    trial.run_until_quiet()
    assert trial.world.status.workers == 3
    trial.edit(("runPolicy", "suspend"), False)
    trial.run_until_quiet()
    assert (trial.world.status.attempt, trial.world.status.workers) == (2, 3)
    assert [event.reason for event in trial.world.events] == [names.Reason.JOB_RESUMED]


def test_a_template_may_be_changed_while_the_job_is_suspended() -> None:
    world, document = running()
    edit(world, document, {"runPolicy": {"suspend": True}})
    world.run_until_quiet()
    assert world.pods == {}
    document = merged(document, {"spec": {"runPolicy": {"suspend": True}}})
    selector = {"spec": {"nodeSelector": {"pool": "a"}, **IMAGE["template"]["spec"]}}
    change = {"tfReplicaSpecs": {"Worker": {"template": selector}}}
    edit(world, document, change)
    world.run_until_quiet()
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
    world.run_until_quiet()
    assert bool(world.pods) is ours
    assert (world.writes > 0) is ours
