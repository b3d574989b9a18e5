"""Copies of the state in an agent's memory: whole, and of one moment in all processes."""

import dataclasses
import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import checkpoints
from tfparallel_trainer.checkpoint import entries, memory_copies, shard, store
from tfparallel_trainer.comms import agreement, devices
from tfparallel_trainer.storage.folder import Folder

Files = tuple[int, int]
"""Open files in memory, as an agent has them."""


@pytest.fixture
def create_files() -> Iterator[Callable[[], Files]]:
    created: list[int] = []

    def create() -> Files:
        pair = os.memfd_create("test-0"), os.memfd_create("test-1")
        created.extend(pair)
        return pair

    yield create
    for descriptor in created:
        os.close(descriptor)


def save(copy: store.CheckpointCopy) -> None:
    """Complete a copy, if it is in memory, and save it."""
    if copy.complete is not None:
        copy.complete()
    copy.save()


def memory_of(files: Sequence[int], messages: list[str]) -> memory_copies.MemoryCopies:
    """The copies in memory of a process that is alone."""
    return memory_copies.MemoryCopies(files, agreement.Peers(), messages.append)


class Attempt:
    """An attempt at a job of one process, with copies in memory."""

    def __init__(self, folder: pathlib.Path, files: Files, number: int = 1) -> None:
        self.messages: list[str] = []
        self.variables = checkpoints.variables(0)
        self.state = shard.undivided(self.variables)
        self.memory = memory_of(files, self.messages)
        self.opened_store = store.Store(
            Folder(folder), 3, "a", number, self.messages.append, memory=self.memory
        )
        self.position = self.opened_store.restore(self.state)
        self.may_copy = self.memory.reserve(self.state)

    def train_to(self, step: int) -> None:
        """Give the variables the values of a step."""
        for key, variable in checkpoints.variables(step).items():
            self.variables[key].assign(variable)

    def copy(self, step: int) -> None:
        """Make a step, and a complete copy."""
        self.train_to(step)
        complete = self.opened_store.copy_in_memory(checkpoints.at(step))
        self.train_to(99)
        complete()

    def save(self, step: int) -> None:
        """Make a step, and a checkpoint."""
        self.train_to(step)
        copy = self.opened_store.copy(self.state, checkpoints.at(step))
        self.train_to(99)
        save(copy)

    def assert_has_state_of(self, step: int) -> None:
        for key, expected in checkpoints.variables(step).items():
            assert (
                self.variables[key].value.numpy().tobytes() == expected.value.numpy().tobytes()
            ), key


@pytest.fixture
def restart(tmp_path: pathlib.Path, create_files: Callable[[], Files]) -> Callable[[], Attempt]:
    """Begins the next attempt, in the memory of the one before."""
    files, attempts = create_files(), iter(range(1, 9))
    return lambda: Attempt(tmp_path, files, next(attempts))


def damage(files: Files, content: Any) -> None:
    """Change a byte of a variable, wherever it lies."""
    changed = 0
    for descriptor in files:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        offset = data.find(content.tobytes())
        if offset >= 0:
            os.pwrite(descriptor, bytes([data[offset] ^ 1]), offset)
            changed += 1
    assert changed == 1


def test_the_newest_copy_is_restored(restart: Callable[[], Attempt]) -> None:
    first = restart()
    assert (first.position, first.may_copy) == (None, True)
    first.save(10)
    for step in (11, 12, 13):
        first.copy(step)
    second = restart()
    assert second.position == checkpoints.at(13)
    second.assert_has_state_of(13)
    assert (second.opened_store.source, second.opened_store.saved_step) == ("memory", 10)
    assert first.messages == second.messages == []


def test_what_is_restored_stays_until_a_newer_copy_is_complete(
    restart: Callable[[], Attempt],
) -> None:
    restart().copy(3)
    for _ in range(2):
        attempt = restart()
        assert attempt.position == checkpoints.at(3)
        attempt.opened_store.copy_in_memory(checkpoints.at(4))  # it never becomes complete
    attempt.copy(5)
    assert restart().position == checkpoints.at(5)


@pytest.mark.parametrize("variables", [0, 1, 2])
def test_a_copy_that_was_cut_off_is_none(
    restart: Callable[[], Attempt], monkeypatch: pytest.MonkeyPatch, variables: int
) -> None:
    attempt = restart()
    attempt.copy(1)
    attempt.copy(2)
    read_into, calls = shard.read_into, iter(range(9))

    def end_before(variable: Any, array: Any) -> None:
        if next(calls) == variables:
            raise KeyboardInterrupt
        read_into(variable, array)

    with monkeypatch.context() as patched:
        patched.setattr(shard, "read_into", end_before)
        with pytest.raises(KeyboardInterrupt):
            attempt.opened_store.copy_in_memory(checkpoints.at(3))
    following = restart()
    assert following.position == checkpoints.at(2)
    following.assert_has_state_of(2)


def test_a_checkpoint_is_written_from_a_copy_that_later_ones_leave_alone(
    restart: Callable[[], Attempt], tmp_path: pathlib.Path
) -> None:
    attempt = restart()
    attempt.copy(1)
    attempt.train_to(2)
    copy = attempt.opened_store.copy(attempt.state, checkpoints.at(2))
    assert copy.complete is not None
    copy.complete()
    for step in (3, 4, 5):
        attempt.copy(step)
    copy.save()
    attempt.copy(6)
    assert restart().position == checkpoints.at(6)
    restored = checkpoints.variables(0)
    assert checkpoints.opened(tmp_path, 9).restore(shard.undivided(restored)) == checkpoints.at(2)
    for key, expected in checkpoints.variables(2).items():
        np.testing.assert_array_equal(restored[key].value.numpy(), expected.value.numpy())


@pytest.mark.parametrize("damaged", [(5,), (4, 5)])
def test_damaged_memory_is_passed_over(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], damaged: tuple[int, ...]
) -> None:
    files = create_files()
    attempt = Attempt(tmp_path, files)
    for step in (3, 4, 5):
        attempt.save(step) if step == 3 else attempt.copy(step)
    for step in damaged:
        damage(files, checkpoints.variables(step)["model/0/0"].value.numpy())
    following = Attempt(tmp_path, files, 2)
    restored = 4 if len(damaged) == 1 else 3
    assert following.position == checkpoints.at(restored)
    following.assert_has_state_of(restored)
    assert (following.opened_store.source == "memory") == (restored == 4)
    for step in damaged:
        sentence = f"skipping the copy of step {step} in memory: memory/part-00000.bin is damaged"
        assert any(sentence in message for message in following.messages)


@pytest.mark.parametrize("damaged_at", [0, 8, 24, "description"])
def test_a_damaged_header_or_description_is_no_copy(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], damaged_at: int | str
) -> None:
    files = create_files()
    attempt = Attempt(tmp_path, files)
    attempt.save(3)
    attempt.copy(4)
    for descriptor in files:
        data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
        offset = damaged_at if isinstance(damaged_at, int) else data.index(b'{"number"') + 40
        os.pwrite(descriptor, bytes([data[offset] ^ 0xFF]), offset)
    following = Attempt(tmp_path, files, 2)
    assert following.position == checkpoints.at(3)
    assert following.opened_store.source.startswith("/")


def test_a_newer_checkpoint_comes_before_older_copies(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    """The job was trained elsewhere meanwhile. What it begins again leaves no older copy."""
    files = create_files()
    Attempt(tmp_path, files).copy(5)
    Attempt(tmp_path, create_files(), 2).save(7)
    third = Attempt(tmp_path, files, 3)
    assert third.position == checkpoints.at(7)
    assert Attempt(tmp_path, files, 4).opened_store.source != "memory"


def test_another_model_is_not_restored(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    files = create_files()
    Attempt(tmp_path, files).copy(5)
    variables = {"model/0/0": keras.Variable(np.zeros((2, 4)), dtype="float32")}
    messages: list[str] = []
    memory = memory_of(files, messages)
    reader = store.Store(Folder(tmp_path), 3, "a", 2, messages.append, memory=memory)
    assert reader.restore(shard.undivided(variables)) is None
    assert messages[0] == "skipping the copy of step 5 in memory: it holds other variables"


def test_too_little_memory_is_said_before_training(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "free_bytes", lambda: 20_000.0)
    files = create_files()
    attempt = Attempt(tmp_path, files)
    assert not attempt.may_copy
    assert attempt.messages == [
        "warning: the state is not copied in memory, because two copies take 8.38 KiB, and 25% of "
        "the free memory are 4.88 KiB; a restart resumes from the newest checkpoint"
    ]
    attempt.save(3)
    assert [os.fstat(descriptor).st_size for descriptor in files] == [0, 0]
    assert Attempt(tmp_path, files, 2).position == checkpoints.at(3)


def test_memory_that_the_kernel_refuses_is_said_before_training(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, allocate = create_files(), os.posix_fallocate

    def refuse_second(descriptor: int, offset: int, size: int) -> None:
        if descriptor == files[1]:
            raise OSError(28, os.strerror(28))
        allocate(descriptor, offset, size)

    monkeypatch.setattr(os, "posix_fallocate", refuse_second)
    attempt = Attempt(tmp_path, files)
    assert not attempt.may_copy
    assert "(No space left on device)" in attempt.messages[0]
    assert [os.fstat(descriptor).st_size for descriptor in files] == [0, 0]


def halves(value: float) -> list[shard.State]:
    """The states of two processes, each with half of a weight and all of a counter."""
    kernel, counter = shard.FullVariable((8, 6), "kernel"), shard.FullVariable((), "counter")
    states = []
    for me in range(2):
        part = slice(4 * me, 4 * me + 4)
        share = {
            "model/0/0": shard.VariableShard(
                variable=keras.Variable(np.full((4, 6), value + me), dtype="float32"),
                whole=kernel,
                part=(part,),
            ),
            "optimizer/0": shard.VariableShard(
                variable=keras.Variable(int(value), dtype="int64"), whole=counter, writes=me == 0
            ),
        }
        states.append(shard.State([share], {"model/0/0": kernel, "optimizer/0": counter}))
    return states


def train_halves(
    folder: pathlib.Path, files: list[Files], attempt: int, work: Callable[..., Any]
) -> tuple[list[Any], list[shard.State], list[str]]:
    """Let two processes restore, and then work."""
    states = halves(0)
    processes = checkpoints.Processes(2, folder, attempt=attempt, memory_files=files)

    def run(me: int, opened: store.Store) -> Any:
        position = opened.restore(states[me])
        processes.memory[me].reserve(states[me])
        work(me, opened, states[me])
        return position

    return processes.run(run), states, processes.messages


def assign(state: shard.State, me: int, value: int) -> None:
    for (_, entry), (_, expected) in zip(state.each(), halves(value)[me].each(), strict=True):
        entry.variable.assign(expected.variable)


def copy_steps(last: list[int]) -> Callable[..., None]:
    """Copy each step up to one of each process, after a checkpoint of step 1."""

    def work(me: int, opened: store.Store, state: shard.State) -> None:
        assign(state, me, 1)
        save(opened.copy(state, checkpoints.at(1)))
        for step in range(2, last[me] + 1):
            assign(state, me, step)
            opened.copy_in_memory(checkpoints.at(step))()

    return work


def rest(*_: object) -> None:
    """Make no step."""


@pytest.mark.parametrize(("last", "common"), [([3, 3], 3), ([3, 4], 3), ([4, 3], 3), ([2, 4], 1)])
def test_processes_restore_the_newest_step_that_all_have(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], last: list[int], common: int
) -> None:
    files = [create_files(), create_files()]
    train_halves(tmp_path, files, 1, copy_steps(last))
    positions, states, _ = train_halves(tmp_path, files, 2, rest)
    assert positions == [checkpoints.at(common)] * 2
    for state, expected in zip(states, halves(common), strict=True):
        for (_, entry), (_, other) in zip(state.each(), expected.each(), strict=True):
            np.testing.assert_array_equal(entry.variable.numpy(), other.variable.numpy())


@pytest.mark.parametrize("lost", [0, 1])
def test_lost_memory_of_one_process_lets_all_read_the_checkpoint(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], lost: int
) -> None:
    files = [create_files(), create_files()]
    train_halves(tmp_path, files, 1, copy_steps([3, 3]))
    files[lost] = create_files()
    positions, _, messages = train_halves(tmp_path, files, 2, rest)
    assert positions == [checkpoints.at(1)] * 2
    sentence = (
        f"no copy of worker-{lost}'s state in memory can be used: the newest checkpoint is read"
    )
    assert messages == [sentence]
    # Copies of another past of one process are never taken.
    train_halves(tmp_path, files, 3, copy_steps([1, 3]))
    assert train_halves(tmp_path, files, 4, rest)[0] == [checkpoints.at(1)] * 2


def test_damaged_memory_of_one_process_is_passed_over_by_all(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    files = [create_files(), create_files()]
    train_halves(tmp_path, files, 1, copy_steps([4, 4]))
    damage(files[1], np.full((4, 6), 5, "float32"))
    assert train_halves(tmp_path, files, 2, rest)[0] == [checkpoints.at(3)] * 2


def test_a_changed_mesh_is_restored_from_the_checkpoint(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    """One process now has the rows of two: its own memory does not cover them."""
    files = [create_files(), create_files()]
    train_halves(tmp_path, files, 1, copy_steps([3, 3]))
    variables = {
        "model/0/0": keras.Variable(np.zeros((8, 6)), dtype="float32", name="kernel"),
        "optimizer/0": keras.Variable(0, dtype="int64", name="counter"),
    }
    messages: list[str] = []
    memory = memory_of(files[0], messages)
    reader = store.Store(Folder(tmp_path), 3, "a", 2, messages.append, memory=memory)
    assert reader.restore(shard.undivided(variables)) == checkpoints.at(1)
    assert "skipping the copy of step 3 in memory: memory lacks 24 elements" in messages[0]
    np.testing.assert_array_equal(variables["model/0/0"].numpy()[4:], np.full((4, 6), 2.0))


def test_no_process_copies_if_one_has_no_memory(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    states = halves(0)
    processes = checkpoints.Processes(2, tmp_path, memory_files=[create_files(), ()])
    assert processes.run(lambda me, _: processes.memory[me].reserve(states[me])) == [False] * 2


def test_parts_that_ranks_share_are_copied_once(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    """The part that a checkpoint takes is copied, and both ranks get it."""
    (single, _), files = halves(3), create_files()
    (share,) = single.shares
    other = {
        key: dataclasses.replace(
            entry, variable=keras.Variable(entry.variable.numpy() + 1), writes=False
        )
        for key, entry in share.items()
    }
    both = shard.State([other, share], single.wholes)
    memory = memory_of(files, [])
    opened = store.Store(Folder(tmp_path), 3, "a", 1, lambda _: None, memory=memory)
    assert memory.reserve(both)
    opened.copy_in_memory(checkpoints.at(2))()
    size = os.fstat(files[0]).st_size
    memory = memory_of(files, [])
    again = store.Store(Folder(tmp_path), 3, "a", 2, lambda _: None, memory=memory)
    assert again.restore(both) == checkpoints.at(2)
    np.testing.assert_array_equal(other["model/0/0"].variable.numpy(), np.full((4, 6), 3.0))
    assert size < 4096 + 2 * 4 * 6 * 4 + 1024


def test_overlapping_parts_are_not_copied(
    tmp_path: pathlib.Path, create_files: Callable[[], Files]
) -> None:
    (single, _), messages = halves(3), list[str]()
    (share,) = single.shares
    entry = share["model/0/0"]
    part = dataclasses.replace(
        entry, variable=keras.Variable(np.zeros((2, 6))), part=(slice(0, 2),), writes=False
    )
    both = shard.State([share, {"model/0/0": part}], single.wholes)
    assert not memory_of(create_files(), messages).reserve(both)
    assert "ranks of this process have overlapping parts of a variable" in messages[0]


def test_a_process_without_an_agent_copies_nothing_and_says_nothing(tmp_path: pathlib.Path) -> None:
    messages: list[str] = []
    opened = store.Store(Folder(tmp_path), 3, "a", 1, messages.append)
    state = checkpoints.state(1)
    assert opened.restore(state) is None
    assert not memory_of((), messages).reserve(state)
    copy = opened.copy(state, checkpoints.at(1))
    assert copy.complete is None
    copy.save()
    assert messages == []
    assert [entries.step_of(entry) for entry in entries.checkpoints(Folder(tmp_path))] == [1]


def test_copies_of_a_later_attempt_are_newer() -> None:
    bits = memory_copies._COUNT_BITS
    assert (2 << bits) + 1 > (1 << bits) + 10**9
    assert (10**9 << bits) + 10**9 < 1 << 63
