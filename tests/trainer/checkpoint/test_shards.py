"""Checkpoints whose parts several processes write and read."""

import dataclasses
import math
import pathlib
import shutil
import time
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.trainer import checkpoints
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import entries, files, owner, shard, store
from tfparallel_trainer.storage.folder import Folder

Division = tuple[tuple[int, ...], ...]
"""For each axis of a variable where its parts begin."""


def at(step: int) -> files.Position:
    return files.Position(step=step, epoch=1, example=step * 2)


def content(shape: Sequence[int], add: float = 0.0) -> Any:
    return np.arange(math.prod(shape), dtype="float32").reshape(shape) + np.float32(add)


def parts(shape: Sequence[int], division: Division) -> list[shard.Part]:
    """All parts of a variable, the last axis fastest."""
    result: list[shard.Part] = [()]
    for length, starts in zip(shape, division, strict=True):
        ends = [*starts[1:], length]
        cuts = [slice(low, high) for low, high in zip(starts, ends, strict=True)]
        result = [(*before, cut) for before in result for cut in cuts]
    return result


Divided = dict[str, tuple[tuple[int, ...], Division]]
"""Shape and division of each variable."""


def states(wholes: Divided, processes: int, add: float | None) -> list[shard.State]:
    """Deal the parts of variables to as many ranks, and those to processes; None for zeros."""
    ranks: list[dict[str, shard.VariableShard]] = []
    described = {key: shard.FullVariable(shape, f"a {key}") for key, (shape, _) in wholes.items()}
    for key, (shape, division) in wholes.items():
        value = np.zeros(shape, "float32") if add is None else content(shape, add)
        for number, part in enumerate(parts(shape, division)):
            if number == len(ranks):
                ranks.append({})
            variable = keras.Variable(value[part])
            state = shard.VariableShard(variable=variable, whole=described[key], part=part)
            ranks[number][key] = state
    return [shard.State(ranks[me::processes], described) for me in range(processes)]


@st.composite
def divided(draw: st.DrawFn, shape: tuple[int, ...]) -> Division:
    parts_of_ranks = []
    for length in shape:
        inner = draw(st.sets(st.integers(1, length - 1), max_size=2)) if length > 1 else set()
        parts_of_ranks.append((0, *sorted(inner)))
    return tuple(parts_of_ranks)


@st.composite
def cases(draw: st.DrawFn) -> Any:
    shapes = draw(st.lists(st.lists(st.integers(1, 6), max_size=3), min_size=1, max_size=3))
    before, after = {}, {}
    for number, lengths in enumerate(shapes):
        shape = tuple(lengths)
        before[f"k{number}"] = (shape, draw(divided(shape)))
        after[f"k{number}"] = (shape, draw(divided(shape)))
    return before, draw(st.integers(1, 3)), after, draw(st.integers(1, 3))


@settings(deadline=None, max_examples=30)
@given(cases(), st.sampled_from([1, 40, 4 << 20]))
def test_what_is_saved_divided_is_restored_divided_otherwise(
    tmp_path_factory: pytest.TempPathFactory, case: Any, block: int
) -> None:
    before, writers, after, readers = case
    folder = tmp_path_factory.mktemp("checkpoints")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard, "BLOCK_BYTES", block)
        given_states = states(before, writers, add=0.5)
        saved = checkpoints.Processes(writers, folder).run(
            lambda me, writer: writer.save(given_states[me], at(7))
        )
        assert saved == [None] * writers
        loaded = states(after, readers, add=None)
        restored = checkpoints.Processes(readers, folder).run(
            lambda me, writer: writer.restore(loaded[me])
        )
    assert restored == [at(7)] * readers
    for state in loaded:
        for key, part in state.each():
            expected = content(after[key][0], 0.5)[part.part]
            np.testing.assert_array_equal(part.variable.value.numpy(), expected)
    shutil.rmtree(folder)


HALVES: Divided = {"kernel": ((8, 6), ((0, 4), (0,))), "bias": ((6,), ((0, 3),))}


def save(folder: pathlib.Path, step: int, count: int = 2) -> list[Any]:
    given_states = states(HALVES, count, add=float(step))
    return checkpoints.Processes(count, folder).run(
        lambda me, writer: writer.save(given_states[me], at(step))
    )


def restore(processes: checkpoints.Processes, count: int) -> tuple[list[Any], Any]:
    restored = states(HALVES, count, add=None)
    results = processes.run(lambda me, writer: writer.restore(restored[me]))
    whole = np.zeros((8, 6), "float32")
    for state in restored:
        for key, part in state.each():
            if key == "kernel":
                whole[part.part] = part.variable.value.numpy()
    return results, whole


@pytest.mark.parametrize("name", ["part-00001.bin", "part-00001.json", "part-00000.json"])
def test_a_checkpoint_without_one_of_its_parts_is_passed_over_by_all(
    tmp_path: pathlib.Path, name: str
) -> None:
    assert save(tmp_path, 1) == save(tmp_path, 2) == [None, None]
    (tmp_path / "step-0000000002" / name).unlink()
    again = checkpoints.Processes(2, tmp_path)
    results, whole = restore(again, 2)
    assert results == [at(1), at(1)]
    np.testing.assert_array_equal(whole, content((8, 6), 1.0))
    number = 2 if "00001" in name else 1
    assert any(f"part {number} of 2 is missing" in sentence for sentence in again.messages)


def test_damage_that_one_process_sees_is_passed_over_by_all(tmp_path: pathlib.Path) -> None:
    assert save(tmp_path, 1) == save(tmp_path, 2) == [None, None]
    data = tmp_path / "step-0000000002" / "part-00000.bin"
    data.write_bytes(data.read_bytes()[:-1] + b"?")  # in what rank 0 of process 0 holds
    again = checkpoints.Processes(2, tmp_path)
    results, whole = restore(again, 2)
    assert results == [at(1), at(1)]
    np.testing.assert_array_equal(whole, content((8, 6), 1.0))
    assert any("worker-0 cannot read its part" in sentence for sentence in again.messages)


def test_a_part_that_is_damaged_later_keeps_an_older_checkpoint(tmp_path: pathlib.Path) -> None:
    for step in (1, 2, 3):
        assert save(tmp_path, step) == [None, None]
    for step in (2, 3):
        data = tmp_path / entries.name(step) / "part-00001.bin"
        data.write_bytes(data.read_bytes()[:-1] + b"?")
    for step in (4, 5):
        assert save(tmp_path, step) == [None, None]
    kept = entries.checkpoints(Folder(tmp_path))
    assert [entries.step_of(checkpoint) for checkpoint in kept] == [1, 4, 5]
    assert save(tmp_path, 6) == [None, None]
    kept = entries.checkpoints(Folder(tmp_path))
    assert [entries.step_of(checkpoint) for checkpoint in kept] == [4, 5, 6]


def test_a_process_that_cannot_write_leaves_the_one_before_and_is_named(
    tmp_path: pathlib.Path,
) -> None:
    assert save(tmp_path, 1) == [None, None]
    given_states = states(HALVES, 2, add=2.0)

    def work(me: int, writer: store.Store) -> None:
        if me == 1:  # a folder where its file should be
            new_owner = owner.find(Folder(tmp_path))
            assert new_owner is not None
            draft = (
                tmp_path / f".writing-{writer.attempt:06}-{new_owner.process}-1-{entries.name(2)}"
            )
            (draft / "part-00001.bin").mkdir(parents=True)
        writer.save(given_states[me], at(2))

    chief, worker = checkpoints.Processes(2, tmp_path).run(work)
    assert isinstance(worker, errors.StorageError)
    assert isinstance(chief, errors.PeerLostError)
    assert "worker-1 could not do its part" in str(chief)
    assert "step-0000000001 is the last good one" in str(chief)
    assert not list(tmp_path.glob(".writing-*"))
    assert restore(checkpoints.Processes(2, tmp_path), 2)[0] == [at(1), at(1)]


def test_a_slow_process_is_waited_for(tmp_path: pathlib.Path) -> None:
    given_states = states(HALVES, 2, add=1.0)

    def work(me: int, writer: store.Store) -> bool:
        if me == 1:
            time.sleep(0.5)
            assert not entries.checkpoints(Folder(tmp_path))
        writer.save(given_states[me], at(1))
        return (tmp_path / "step-0000000001" / "index.json").is_file()

    assert checkpoints.Processes(2, tmp_path).run(work) == [True, True]


def test_parts_that_do_not_make_up_the_whole_are_no_checkpoint(tmp_path: pathlib.Path) -> None:
    (given_state,) = states(HALVES, 1, add=1.0)
    first, second = given_state.shares
    silent = {**second, "kernel": dataclasses.replace(second["kernel"], writes=False)}
    for shares, pattern in (
        ([first, silent], "24 elements of kernel"),
        ([first, second, first], "two parts hold the same elements"),
        (
            [{"bias": first["bias"]}, {"bias": second["bias"]}],
            r"no part of .* holds kernel \(a ker",
        ),
    ):
        state = shard.State(shares, given_state.wholes)
        with pytest.raises(errors.StorageError, match=pattern):
            checkpoints.opened(tmp_path).save(state, at(1))
    checkpoints.opened(tmp_path).save(given_state, at(1))
    assert [path.name for path in entries.checkpoints(Folder(tmp_path))] == ["step-0000000001"]


def test_processes_that_share_no_folder_are_reported(tmp_path: pathlib.Path) -> None:
    results = checkpoints.Processes(2, tmp_path / "one", tmp_path / "other").run(
        lambda me, writer: None
    )
    assert all(isinstance(result, errors.BadConfigurationError) for result in results)
    assert "worker-1 does not see what worker-0 writes" in str(results[0])


def test_variables_of_a_strategy_are_saved_and_restored(tmp_path: pathlib.Path) -> None:
    devices = ["/device:CPU:0", "/device:CPU:1"]
    with tf.distribute.MirroredStrategy(devices).scope():
        saved = {"kernel": keras.Variable(content((9, 2))), "count": keras.Variable(3)}
        variables = {"kernel": keras.Variable(np.zeros((9, 2))), "count": keras.Variable(0)}
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(shard, "BLOCK_BYTES", 16)
        checkpoints.opened(tmp_path).save(shard.undivided(saved), at(1))
        assert checkpoints.opened(tmp_path).restore(shard.undivided(variables)) == at(1)
    for copy in variables["kernel"].value.values:
        np.testing.assert_array_equal(copy.numpy(), content((9, 2)))
    assert variables["count"].value.numpy() == 3
