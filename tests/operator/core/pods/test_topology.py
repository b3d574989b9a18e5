"""Pods whose devices exchange most are near each other: by index, and by what is preferred."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.operator import builders
from tfparallel_operator.api import names, types
from tfparallel_operator.core import layout, replicas
from tfparallel_operator.core.pods import cluster_spec, topology
from tfparallel_trainer import tasks
from tfparallel_trainer.comms import shape

GROUP, PIPELINE = names.LABEL_MESH_GROUP, names.LABEL_MESH_PIPELINE


def labels(job: types.TFParallelJob, label: str) -> list[str | None]:
    """What each training replica has, in the order of ranks."""
    plan = layout.build(job)
    return [topology.labels(plan, replica).get(label) for replica in plan.all_replicas]


def with_devices(mesh: dict[str, Any], devices: int, **roles: int) -> types.TFParallelJob:
    specs = {builders.ROLES[role]: {"replicas": n, "devices": devices} for role, n in roles.items()}
    return builders.a_split_job(mesh, spec={"tfReplicaSpecs": specs}, **roles)


def terms(job: types.TFParallelJob, replica: replicas.Replica) -> list[tuple[int, str, str]]:
    """Weight, topology key and the narrowest label of each preference, as they are in the pod."""
    pod = builders.a_pod(job, replica)
    affinity = pod["spec"].get("affinity", {}).get("podAffinity", {})
    assert set(affinity) <= {"preferredDuringSchedulingIgnoredDuringExecution"}
    affinity_terms = []
    for weighted in affinity.get("preferredDuringSchedulingIgnoredDuringExecution", []):
        term = weighted["podAffinityTerm"]
        matched = dict(term["labelSelector"]["matchLabels"])
        assert matched.pop(names.LABEL_JOB) == "job"
        assert matched.items() <= pod["metadata"]["labels"].items()
        [label] = matched or [names.LABEL_JOB]
        affinity_terms.append((weighted["weight"], term["topologyKey"], label))
    return affinity_terms


def test_a_group_that_fits_a_pod_needs_no_others() -> None:
    job = with_devices({"tensor": 2, "data": 4}, 2, worker=4)
    assert labels(job, GROUP) == labels(job, PIPELINE) == [None] * 4


def test_groups_that_take_several_pods_are_labelled() -> None:
    job = with_devices({"data": 2, "stage": 2, "spatial": 2, "tensor": 2}, 2, chief=1, worker=7)
    assert labels(job, GROUP) == ["0", "0", "1", "1", "2", "2", "3", "3"]
    assert labels(job, PIPELINE) == ["0"] * 4 + ["1"] * 4


def test_stages_in_separate_pods_form_a_pipeline() -> None:
    job = builders.a_split_job({"data": -1, "stage": 2}, worker=4)
    assert labels(job, GROUP) == [None] * 4
    assert labels(job, PIPELINE) == ["0", "0", "1", "1"]


def test_groups_that_end_within_a_pod_are_left_out() -> None:
    job = with_devices({"data": 2, "tensor": 3}, 2, worker=3)
    assert labels(job, GROUP) == [None] * 3


def test_the_nearer_ranks_are_the_more_nearness_is_preferred() -> None:
    job = builders.a_split_job({"data": 2, "stage": 2, "tensor": 2}, worker=8)
    hostname, zone = topology.DEFAULT_KEYS
    assert terms(job, replicas.Replica(types.Role.WORKER, 5)) == [
        (100, hostname, GROUP),
        (100, zone, GROUP),
        (30, zone, PIPELINE),
        (10, zone, names.LABEL_JOB),
    ]
    stages = builders.a_split_job({"data": 2, "stage": 2}, worker=4)
    assert terms(stages, replicas.Replica(types.Role.WORKER, 0)) == [
        (30, hostname, PIPELINE),
        (30, zone, PIPELINE),
        (10, zone, names.LABEL_JOB),
    ]


def test_a_mesh_that_is_to_be_planned_prefers_the_whole_job_near() -> None:
    job = builders.a_split_job({"auto": True}, worker=2)
    affinity_terms = terms(job, replicas.Replica(types.Role.WORKER, 0))
    assert {label for _, _, label in affinity_terms} == {names.LABEL_JOB}


@pytest.mark.parametrize("keys", [[], ["example.com/rack"]])
def test_the_job_says_what_is_near(keys: list[str]) -> None:
    spec = {"scheduling": {"topologyKeys": keys}}
    for job in (
        builders.a_split_job({"stage": 2}, worker=2, spec=spec),
        builders.a_job(trainer=True, worker=2, spec=spec),
    ):
        affinity_terms = terms(job, replicas.Replica(types.Role.WORKER, 1))
        assert affinity_terms == [(10, key, names.LABEL_JOB) for key in keys]


def test_nothing_is_asked_for_unless_it_helps() -> None:
    worker = replicas.Replica(types.Role.WORKER, 0)
    alone = with_devices({"tensor": 4}, 4, worker=1)
    assert terms(alone, worker) == []
    assert terms(builders.a_job(trainer=True, worker=3), worker) == []
    trainer = {"trainer": {"epochs": 1, "checkpoint": {"claim": "c"}}}
    spec = {**trainer, "scheduling": {"topologyKeys": ["zone"]}}
    beside = builders.a_job(trainer=True, worker=2, evaluator=1, spec=spec)
    assert terms(beside, replicas.Replica(types.Role.EVALUATOR, 0)) == []
    assert len(terms(beside, worker)) == 1


def test_an_affinity_of_the_template_goes_before() -> None:
    node_affinity: dict[str, Any] = {"requiredDuringSchedulingIgnoredDuringExecution": []}
    template = {"spec": {"affinity": {"podAffinity": node_affinity, "nodeAffinity": {"a": 1}}}}
    specs = {"Worker": {"replicas": 2, "template": template}}
    job = builders.a_split_job({"stage": 2}, spec={"tfReplicaSpecs": specs}, worker=2)
    worker = replicas.Replica(types.Role.WORKER, 0)
    pod = builders.a_pod(job, worker)
    assert pod["spec"]["affinity"] == {"podAffinity": node_affinity, "nodeAffinity": {"a": 1}}


@given(
    axes=st.lists(st.integers(1, 3), min_size=4, max_size=4),
    devices=st.integers(1, 4),
    chief=st.booleans(),
)
def test_pods_of_one_label_have_just_the_ranks_of_one_group(
    axes: list[int], devices: int, chief: bool
) -> None:
    mesh = shape.MeshShape(*axes)
    pods = mesh.size // devices
    if pods * devices != mesh.size or (chief and pods < 2):
        return
    roles = {"chief": 1, "worker": pods - 1} if chief else {"worker": pods}
    given_mesh = dict(zip(("data", "stage", "spatial", "tensor"), axes, strict=True))
    job = with_devices(given_mesh, devices, **roles)
    # The trainer's own reading of TF_CONFIG says which ranks a pod has.
    plan = layout.build(job)
    config = cluster_spec.tf_config(plan, plan.all_replicas[0])
    order = [task.name for task in tasks.parse(config).tasks]
    assert order == [replica.name for replica in plan.all_replicas]
    for label, mesh_axis in ((GROUP, shape.Axis.SPATIAL), (PIPELINE, shape.Axis.STAGE)):
        labels_of_ranks = labels(job, label)
        if labels_of_ranks[0] is None:
            continue
        outer = [axis for axis in shape.Axis if list(shape.Axis).index(axis) < _place(mesh_axis)]
        for rank, other in itertools.combinations(range(mesh.size), 2):
            coordinates, two = mesh.coordinates(rank), mesh.coordinates(other)
            together = all(coordinates[axis] == two[axis] for axis in outer)
            assert (
                labels_of_ranks[rank // devices] == labels_of_ranks[other // devices]
            ) is together


def _place(axis: shape.Axis) -> int:
    return list(shape.Axis).index(axis)
