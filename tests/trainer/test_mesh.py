"""The mesh and the cluster as values."""

import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tfparallel_trainer import errors
from tfparallel_trainer.mesh import shape, tasks, watch

degrees = st.integers(1, 4)
meshes = st.builds(shape.Mesh, data=degrees, stage=degrees, spatial=degrees, tensor=degrees)


@given(meshes)
def test_ranks_and_places_are_the_same_thing(mesh: shape.Mesh) -> None:
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    assert [mesh.rank(place) for place in places] == list(range(mesh.size))
    assert all(0 <= place[axis] < mesh.degree(axis) for place in places for axis in shape.Axis)


@given(meshes, st.sampled_from(shape.Axis))
def test_groups_of_an_axis_divide_the_ranks(mesh: shape.Mesh, axis: shape.Axis) -> None:
    groups = {mesh.group(rank, axis) for rank in range(mesh.size)}
    assert sorted(rank for group in groups for rank in group.ranks) == list(range(mesh.size))
    assert all(len(group.ranks) == mesh.degree(axis) for group in groups)
    for group in groups:
        assert [mesh.coordinates(rank)[axis] for rank in group.ranks] == list(
            range(mesh.degree(axis))
        )


@given(meshes)
def test_no_two_groups_have_one_key(mesh: shape.Mesh) -> None:
    groups = {mesh.group(rank, axis) for rank in range(mesh.size) for axis in shape.Axis}
    assert len({group.key for group in groups}) == len(groups)


def test_places_outside_are_refused() -> None:
    mesh = shape.Mesh(data=2)
    with pytest.raises(ValueError, match="rank 2 is not in a mesh of 2 ranks"):
        mesh.coordinates(2)
    with pytest.raises(ValueError, match="tensor 1 is not within 1"):
        mesh.rank({shape.Axis.TENSOR: 1})
    with pytest.raises(errors.BadConfigurationError, match=r"mesh.stage is 0"):
        shape.Mesh(stage=0)


def config(kind: str, index: int, **cluster: list[str]) -> str:
    return json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})


def test_the_chief_comes_first() -> None:
    found = tasks.parse(config("worker", 1, worker=["a:1", "b:1"], chief=["c:1"]))
    assert [task.name for task in found.tasks] == ["chief-0", "worker-0", "worker-1"]
    assert (found.task.address, found.is_chief) == ("b:1", False)
    assert found.addresses() == {"chief": ["c:1"], "worker": ["a:1", "b:1"]}


def test_worker_0_is_the_chief_without_one() -> None:
    assert tasks.parse(config("worker", 0, worker=["a:1", "b:1"])).is_chief


@pytest.mark.parametrize("text", [None, "", "{}", '{"cluster": {}}'])
def test_no_cluster_is_one_process(text: str | None) -> None:
    assert tasks.parse(text).alone


def test_the_evaluator_is_no_rank() -> None:
    found = tasks.parse(config("worker", 0, worker=["a:1"], evaluator=["e:1"]))
    assert found.alone
    for addresses in ({"evaluator": ["e:1"]}, {}):
        found = tasks.parse(config("evaluator", 0, worker=["a:1", "b:1"], **addresses))
        assert found.alone
        assert found.task.name == "evaluator-0"
        assert not found.is_chief


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nonsense", "TF_CONFIG is 'nonsense': write it as"),
        (json.dumps({"cluster": {"worker": ["a:1"]}}), "write it as"),
        (config("worker", 3, worker=["a:1"]), "this is worker-3, but its cluster has worker-0"),
        (config("worker", 0, worker=["a:1"], master=["p:1"]), "the role master"),
        (config("chief", 0, chief=["a:1", "b:1"]), "2 chiefs"),
    ],
)
def test_wrong_clusters_are_refused(text: str, said: str) -> None:
    with pytest.raises(errors.BadConfigurationError, match=said):
        tasks.parse(text)


@given(st.integers(2, 9))
def test_everybody_is_watched(count: int) -> None:
    addresses = [f"host:{port}" for port in range(count)]
    seen: dict[str, int] = {}
    for me in range(count):
        for peer in watch.watched(tasks.parse(config("worker", me, worker=addresses))):
            assert peer.index != me
            seen[peer.name] = seen.get(peer.name, 0) + 1
    assert sorted(seen) == sorted(f"worker-{number}" for number in range(count))
    assert seen["worker-0"] == count - 1


@given(meshes)
def test_pairs_have_keys_that_no_group_and_no_other_pair_has(mesh: shape.Mesh) -> None:
    groups = {mesh.group(rank, axis) for rank in range(mesh.size) for axis in shape.Axis}
    keys = [group.key for group in groups]
    for group in groups:
        size = len(group.ranks)
        for one, other in itertools.combinations(range(size), 2):
            keys.append(shape.pair_key(group.key, size, one, other))
            assert keys[-1] == shape.pair_key(group.key, size, other, one) < 1 << 31
    assert len(set(keys)) == len(keys)


def test_pairs_of_groups_of_all_sizes_differ() -> None:
    key = shape.Group(shape.Axis.TENSOR, 0, (0,)).key
    sizes = range(2, shape.MAX_PAIRED + 1)
    keys = [
        shape.pair_key(key, size, *pair)
        for size in sizes
        for pair in itertools.combinations(range(size), 2)
    ]
    assert len(set(keys)) == len(keys)
    assert max(keys) < 1 << 31
    with pytest.raises(ValueError, match="0 and 1 are no pair in a group of 47 ranks"):
        shape.pair_key(key, 47, 0, 1)
