"""Meshes that a person may write, and the devices that they have to fit."""

from typing import Any

import pytest

from testing.operator import builders, spec_changes
from tfparallel_operator.api import load


def with_mesh(mesh: dict[str, Any] | None, **roles: int) -> dict[str, Any]:
    """Return a manifest of strategy ModelSplit."""
    document = builders.manifest(trainer=True, **(roles or {"chief": 1, "worker": 3}))
    document["spec"]["strategy"] = "ModelSplit"
    if mesh is not None:
        document["spec"]["mesh"] = mesh
    return document


def with_devices(document: dict[str, Any], **devices: int) -> dict[str, Any]:
    for role, count in devices.items():
        spec_changes.roles(document)[builders.ROLES[role]]["devices"] = count
    return document


def with_template(document: dict[str, Any], role: str, **container: Any) -> dict[str, Any]:
    containers = [{"name": "tensorflow", **container}]
    spec_changes.roles(document)[role]["template"] = {"spec": {"containers": containers}}
    return document


CPU_DEVICES = [{"name": "TFPARALLEL_CPU_DEVICES", "value": "2"}]

MESHES: list[tuple[str, dict[str, Any]]] = [
    ("product", with_mesh({"data": 2, "tensor": 2})),
    ("inferred", with_mesh({"stage": -1, "tensor": 2})),
    ("planned", with_mesh({"auto": True})),
    ("cut by names", with_mesh({"stage": -1, "data": 2, "cuts": ["dense"]})),
    ("shared state", with_mesh({"data": 2, "stage": 2, "shardOptimizer": True})),
    ("shared state, inferred", with_mesh({"data": -1, "stage": 4, "shardOptimizer": True})),
    ("shared state, planned", with_mesh({"auto": True, "shardOptimizer": True})),
    ("planned, with a schedule", with_mesh({"auto": True, "schedule": "GPipe"})),
    ("one process", with_mesh({"stage": 1}, worker=1)),
    ("a batch of unequal parts", with_mesh({"data": 3, "stage": 2}, worker=6)),
    ("several devices", with_devices(with_mesh({"stage": 4, "data": 2}, worker=4), worker=2)),
    ("a CPU in parts", with_template(with_mesh({"data": 4}, worker=2), "Worker", env=CPU_DEVICES)),
    (
        "GPUs of a template",
        with_template(
            with_mesh({"spatial": 4}, worker=2),
            "Worker",
            resources={"limits": {"nvidia.com/gpu": 2}},
        ),
    ),
    ("a template that asks for no devices", with_template(with_mesh({"data": 4}), "Chief")),
]


@pytest.mark.parametrize("document", [case[1] for case in MESHES], ids=[case[0] for case in MESHES])
def test_a_mesh_that_fits_its_devices_is_taken(document: dict[str, Any]) -> None:
    job = load.parse_job(document)
    assert job.spec.mesh is not None
    assert job.spec.mesh.microbatches == 1


BAD_MESHES: list[tuple[str, dict[str, Any], str]] = [
    (
        "product",
        with_mesh({"data": 3}),
        "spec: mesh is data 3 x stage 1 x spatial 1 x tensor 1, which does not fit the 4 devices"
        " of all replicas. Change an axis, replicas or devices",
    ),
    ("rest", with_mesh({"data": -1, "tensor": 3}), "which does not fit the 4 devices"),
    (
        "product of devices",
        with_devices(with_mesh({"data": 2}, worker=2), worker=2),
        "which does not fit the 4 devices",
    ),
    (
        "two inferred",
        with_mesh({"data": -1, "stage": -1}),
        "spec.mesh: data and stage are -1: only one axis may be, give a number",
    ),
    ("zero", with_mesh({"data": 0}), "spec.mesh: data is 0: give a number from 1, or -1"),
    ("less", with_mesh({"tensor": -2}), "spec.mesh.tensor: received -2"),
    ("both", with_mesh({"auto": True, "stage": 4}), "auto lets the planner choose axes"),
    (
        "both with microbatches",
        with_mesh({"auto": True, "microbatches": 4}),
        "auto lets the planner choose axes, cuts and microbatches: remove those that are given",
    ),
    ("both with cuts", with_mesh({"auto": True, "cuts": ["a"]}), "auto lets the planner choose"),
    (
        "shared state of one",
        with_mesh({"stage": 4, "shardOptimizer": True}),
        "spec.mesh: shardOptimizer is true and data is 1, so that no ranks could share the"
        " optimizer's state: give data at least 2, or remove shardOptimizer",
    ),
    (
        "more cuts than stages",
        with_mesh({"stage": 4, "cuts": ["a", "b"]}),
        "spec.mesh: 2 cuts make 3 stages, and stage is 4: change one of them",
    ),
    (
        "more cuts than devices",
        with_template(with_mesh({"stage": -1, "cuts": ["a"]}), "Worker"),
        "mesh.stage is -1, which 4 devices make 4, and 1 cuts make 2 stages",
    ),
    (
        "more cuts than the rest",
        with_mesh({"stage": -1, "cuts": ["a"]}),
        "the devices make another number of stages than mesh.cuts",
    ),
    ("schedule", with_mesh({"data": 4, "schedule": "1f1b"}), "spec.mesh.schedule: received '1f1b'"),
    ("none", with_mesh(None), "mesh and strategy ModelSplit belong together: give both"),
    (
        "another strategy",
        with_mesh({"data": 4}) | {"spec": with_mesh({"data": 4})["spec"] | {"strategy": "Custom"}},
        "mesh and strategy ModelSplit belong together",
    ),
    (
        "evaluator",
        with_mesh({"data": 4}, worker=4, evaluator=1),
        "strategy ModelSplit evaluates on the mesh that trains",
    ),
    (
        "servers",
        with_mesh({"data": 4}, worker=4, ps=1),
        "only strategy ParameterServer uses servers",
    ),
    (
        "workers that come and go",
        with_mesh({"data": 4})
        | {"spec": with_mesh({"data": 4})["spec"] | {"enableDynamicWorker": True}},
        "strategy ModelSplit needs all its replicas at once: remove enableDynamicWorker",
    ),
    (
        "unequal devices",
        with_devices(with_mesh({"data": -1}, chief=1, worker=2), chief=1, worker=2),
        "a mesh needs equally many devices in each replica",
    ),
    (
        "devices of one role",
        with_devices(with_mesh({"data": -1}, master=1, worker=2), worker=2),
        "a mesh needs equally many devices in each replica",
    ),
    (
        "batch",
        with_mesh({"stage": 4, "microbatches": 5}),
        "trainer.globalBatchSize is 32, which is not divisible by mesh.data 1 x"
        " mesh.microbatches 5",
    ),
    (
        "batch of the rest",
        with_mesh({"data": -1, "microbatches": 16}),
        "trainer.globalBatchSize is 32, which is not divisible by mesh.data 4 x"
        " mesh.microbatches 16: change one of them",
    ),
    (
        "batch of templates",
        with_template(
            with_mesh({"data": -1, "microbatches": 16}, worker=2), "Worker", env=CPU_DEVICES
        ),
        "spec.mesh: trainer.globalBatchSize is 32, which is not divisible by mesh.data 4 x",
    ),
    ("empty parts", with_mesh({"data": 64}, worker=64), "which is not divisible by mesh.data 64"),
    (
        "product of templates",
        with_template(with_mesh({"data": 2}, worker=2), "Worker", env=CPU_DEVICES),
        "spec.mesh: mesh is data 2 x stage 1 x spatial 1 x tensor 1 = 2, and there are 4 devices",
    ),
    (
        "rest of templates",
        with_template(with_mesh({"data": 3, "stage": -1}, worker=2), "Worker", env=CPU_DEVICES),
        "and 4 devices are not divisible by 3",
    ),
    (
        "unequal templates",
        with_template(with_mesh({"data": -1}), "Worker", env=CPU_DEVICES),
        "and Chief has 1 and Worker has 2: give them the same devices",
    ),
]


@pytest.mark.parametrize(
    ("document", "sentence"),
    [case[1:] for case in BAD_MESHES],
    ids=[case[0] for case in BAD_MESHES],
)
def test_a_mesh_that_fits_nothing_is_refused(document: dict[str, Any], sentence: str) -> None:
    with pytest.raises(load.SpecError) as refused:
        load.parse_job(document)
    assert any(sentence in problem for problem in refused.value.problems), refused.value.problems


def test_a_mesh_needs_the_shipped_trainer() -> None:
    document = builders.manifest(worker=4)
    document["spec"] |= {"strategy": "ModelSplit", "mesh": {"data": 4}}
    with pytest.raises(load.SpecError, match="strategy ModelSplit is the shipped trainer's"):
        load.parse_job(document)
