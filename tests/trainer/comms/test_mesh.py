"""The mesh and the cluster as values."""

import dataclasses
import itertools
import json
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster, shape
from tfparallel_trainer.contract import plan

degrees = st.integers(1, 4)
meshes = st.builds(shape.MeshShape, data=degrees, stage=degrees, spatial=degrees, tensor=degrees)


@given(meshes)
def test_ranks_and_places_are_the_same_thing(mesh: shape.MeshShape) -> None:
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert places == [
        dict(zip(shape.Axis, coordinates, strict=True))
        for coordinates in itertools.product(*map(range, mesh.degrees))
    ]


@given(meshes, degrees)
def test_a_plan_has_the_ranks_of_the_mesh(mesh: shape.MeshShape, devices: int) -> None:
    axes = plan.Axes(**{str(axis): mesh.degree(axis) for axis in shape.Axis})
    ranks = plan.ranks(axes, devices)
    assert len(ranks) == mesh.size
    for number, rank in enumerate(ranks):
        assert rank.process * devices + rank.device == rank.rank == number
        assert {axis: getattr(rank, axis) for axis in shape.Axis} == mesh.coordinates(number)


@given(meshes, st.sampled_from(shape.Axis))
def test_groups_of_an_axis_divide_the_ranks(mesh: shape.MeshShape, axis: shape.Axis) -> None:
    groups = {mesh.group(rank, axis) for rank in range(mesh.size)}
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(mesh.size))
    assert all(len(group.ranks) == mesh.degree(axis) for group in groups)
    for group in groups:
        assert [mesh.coordinates(rank)[axis] for rank in group.ranks] == list(
            range(mesh.degree(axis))
        )


def keys_of(mesh: shape.MeshShape) -> list[int]:
    """The keys of all groups, of their pairs and of some other sets of ranks."""
    keys = [mesh.other_key(number) for number in range(5)]
    for group in {mesh.group(rank, axis) for rank in range(mesh.size) for axis in shape.Axis}:
        keys.append(group.key)
        size = len(group.ranks)
        for process, other in itertools.combinations(range(min(size, shape.MAX_PAIRED)), 2):
            keys.append(shape.pair_key(group.key, size, process, other))
            assert keys[-1] == shape.pair_key(group.key, size, other, process)
    return keys


@given(st.lists(meshes, max_size=4), st.integers(0, 3000))
def test_no_two_sets_of_ranks_have_one_key(some_meshes: list[shape.MeshShape], first: int) -> None:
    some_meshes = [
        dataclasses.replace(mesh, generation=number)
        for number, mesh in enumerate(some_meshes, first)
    ]
    keys = [key for mesh in some_meshes for key in keys_of(mesh)]
    assert len(set(keys)) == len(keys)
    assert all(1 << 14 < key < 1 << 30 for key in keys)


def test_large_meshes_have_keys() -> None:
    for large in ({"data": 4096}, {"data": 16, "stage": 16, "tensor": 16}):
        mesh = shape.MeshShape(**large, generation=4094)
        for axis in shape.Axis:
            assert mesh.group(mesh.size - 1, axis).key < 1 << 30
    with pytest.raises(errors.BadConfigurationError, match=r"^mesh.is data 1 x .*fewer devices"):
        shape.MeshShape(stage=100, spatial=30, tensor=30).group(89_999, shape.Axis.TENSOR)


def test_pairs_of_large_groups_have_no_keys() -> None:
    with pytest.raises(ValueError, match="0 and 1 are no pair in a group of 47 ranks"):
        shape.pair_key(1 << 20, 47, 0, 1)


def test_places_outside_are_refused() -> None:
    mesh = shape.MeshShape(data=2)
    with pytest.raises(ValueError, match="rank 2 is not in a mesh of 2 ranks"):
        mesh.coordinates(2)
    with pytest.raises(errors.BadConfigurationError, match=r"mesh.stage is 0"):
        shape.MeshShape(stage=0)


def config(kind: str, index: int, **addresses_by_role: list[str]) -> str:
    return json.dumps({"cluster": addresses_by_role, "task": {"type": kind, "index": index}})


def test_the_chief_comes_first() -> None:
    job_cluster = tasks.parse(config("worker", 1, worker=["a:1", "b:1"], chief=["c:1"]))
    assert [task.name for task in job_cluster.tasks] == ["chief-0", "worker-0", "worker-1"]
    assert (job_cluster.task.address, job_cluster.is_chief) == ("b:1", False)
    assert job_cluster.addresses() == {"chief": ["c:1"], "worker": ["a:1", "b:1"]}


def test_worker_0_is_the_chief_without_one() -> None:
    assert tasks.parse(config("worker", 0, worker=["a:1", "b:1"])).is_chief


@pytest.mark.parametrize("text", [None, "", "{}", '{"cluster": {}}'])
def test_no_cluster_is_one_process(text: str | None) -> None:
    assert tasks.parse(text).alone


def test_the_evaluator_is_no_rank() -> None:
    job_cluster = tasks.parse(config("worker", 0, worker=["a:1"], evaluator=["e:1"]))
    assert job_cluster.alone
    for addresses in ({"evaluator": ["e:1"]}, {}):
        job_cluster = tasks.parse(config("evaluator", 0, worker=["a:1", "b:1"], **addresses))
        assert job_cluster.alone
        assert job_cluster.task.name == "evaluator-0"
        assert not job_cluster.is_chief


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        ("nonsense", "TF_CONFIG is 'nonsense': write it as"),
        (json.dumps({"cluster": {"worker": ["a:1"]}}), "write it as"),
        (config("worker", 3, worker=["a:1"]), "this is worker-3, but its cluster has worker-0"),
        (config("worker", 0, worker=["a:1"], master=["p:1"]), "the role master"),
        (config("chief", 0, chief=["a:1", "b:1"]), "2 chiefs"),
    ],
)
def test_wrong_clusters_are_refused(text: str, pattern: str) -> None:
    with pytest.raises(errors.BadConfigurationError, match=pattern):
        tasks.parse(text)


@given(st.integers(2, 9))
def test_everybody_is_watched(count: int) -> None:
    addresses = [f"host:{port}" for port in range(count)]
    index_by_peer: dict[str, int] = {}
    for me in range(count):
        for peer in cluster.watched(tasks.parse(config("worker", me, worker=addresses))):
            assert peer.index != me
            index_by_peer[peer.name] = index_by_peer.get(peer.name, 0) + 1
    assert sorted(index_by_peer) == sorted(f"worker-{number}" for number in range(count))
    assert index_by_peer["worker-0"] == count - 1


@pytest.mark.parametrize(
    ("answers", "losses"),
    [
        pytest.param([False, True, False, True, False], 0, id="busy for a moment"),
        pytest.param([False, True, False, True, True], 1, id="gone"),
    ],
)
def test_a_peer_is_lost_when_it_refuses_twice_in_a_row(
    answers: list[bool], losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    has_answered = threading.Event()

    def refuse(peer: tasks.Task) -> bool:
        if answers:
            return answers.pop(0)
        has_answered.set()
        return False

    monkeypatch.setattr(cluster, "refuses", refuse)
    monkeypatch.setattr(cluster, "_INTERVAL_SECONDS", 0.001)
    lost: list[str] = []
    with cluster.watching(
        [tasks.Task("worker", 0, "127.0.0.1:9")], lambda error: lost.append(str(error))
    ):
        assert has_answered.wait(30)
    assert lost == ["A peer was lost: worker-0 no longer listens at 127.0.0.1:9."] * losses


def test_a_peer_may_end_after_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    answers, asked_again, released = [True, True], threading.Event(), threading.Event()

    def refuse(peer: tasks.Task) -> bool:
        if len(answers) == 1:
            asked_again.set()
            assert released.wait(30)
        return answers.pop()

    monkeypatch.setattr(cluster, "refuses", refuse)
    monkeypatch.setattr(cluster, "_INTERVAL_SECONDS", 0.001)
    before = set(threading.enumerate())
    lost: list[errors.TrainerError] = []
    with cluster.watching([tasks.Task("worker", 0, "127.0.0.1:9")], lost.append):
        (watcher,) = {*threading.enumerate()} - before
        assert asked_again.wait(30)
    released.set()
    watcher.join(30)
    assert not watcher.is_alive()
    assert lost == []
