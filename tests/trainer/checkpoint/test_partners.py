"""Copies of the state that another process keeps: they serve when a process loses its memory."""

import os
import pathlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import checkpoints
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import memory_copies, partners, shard, store
from tfparallel_trainer.comms import devices

Files = tuple[int, ...]
"""Open files in memory, as an agent has them."""


@pytest.fixture
def create_files() -> Iterator[Callable[[], Files]]:
    created: list[int] = []

    def create() -> Files:
        opened = [os.memfd_create(f"test-{number}") for number in range(4)]
        created.extend(opened)
        return tuple(opened)

    yield create
    for descriptor in created:
        os.close(descriptor)


def parts(count: int, value: float) -> list[shard.State]:
    """The states of processes, each with some rows of a weight, and all of a counter."""
    kernel, counter = shard.FullVariable((4 * count, 6), "kernel"), shard.FullVariable((), "steps")
    states = []
    for me in range(count):
        share = {
            "model/0/0": shard.VariableShard(
                variable=keras.Variable(np.full((4, 6), 100 * me + value), dtype="float32"),
                whole=kernel,
                part=(slice(4 * me, 4 * me + 4),),
            ),
            "optimizer/0": shard.VariableShard(
                variable=keras.Variable(int(value), dtype="int64"), whole=counter, writes=me == 0
            ),
        }
        states.append(shard.State([share], {"model/0/0": kernel, "optimizer/0": counter}))
    return states


class Gang:
    """Processes that each have a part of the state, over several attempts."""

    def __init__(self, count: int, folder: pathlib.Path, create: Callable[[], Files]) -> None:
        self._folder, self._create = folder, create
        self.folder_name = os.fspath(folder)
        self.files = [create() for _ in range(count)]
        self._attempt = 0

    def lose(self, *processes: int) -> None:
        """Lose the memory of some processes."""
        for process in processes:
            self.files[process] = self._create()

    def run(self, first: int = 1, last: int = 0, saved: int = 1) -> tuple[list[Any], list[str]]:
        """Restore, and then copy the state of some steps, of which one is saved instead.

        Returns where each process has begun, with its source, and what they said.
        """
        self._attempt += 1
        count = len(self.files)
        states = parts(count, 0)
        processes = checkpoints.Processes(
            count, self._folder, attempt=self._attempt, memory_files=self.files
        )

        def work(me: int, opened: store.Store) -> Any:
            position = opened.restore(states[me])
            if position is not None:
                assert_equal(states[me], parts(count, position.step)[me])
            assert processes.memory[me].reserve(states[me]) == bool(self.files[me])
            for step in range(first, last + 1):
                assign(states[me], parts(count, step)[me])
                if step == saved:
                    copy = opened.copy(states[me], checkpoints.at(step))
                    if copy.complete is not None:
                        copy.complete()
                    copy.save()
                    continue
                complete = opened.copy_in_memory(checkpoints.at(step))
                assign(states[me], parts(count, 99)[me])
                complete()
                processes.memory[me].exchange()
            return position, opened.source

        return processes.run(work), processes.messages

    def damage(self, process: int, content: Any, files: slice) -> None:
        """Change a byte of a variable in some files of a process."""
        changed = 0
        for descriptor in self.files[process][files]:
            data = os.pread(descriptor, os.fstat(descriptor).st_size, 0)
            offset = data.find(content.tobytes())
            if offset >= 0:
                os.pwrite(descriptor, bytes([data[offset] ^ 1]), offset)
                changed += 1
        assert changed == 1


def assign(state: shard.State, values: shard.State) -> None:
    for (_, entry), (_, other) in zip(state.each(), values.each(), strict=True):
        entry.variable.assign(other.variable)


def assert_equal(state: shard.State, expected: shard.State) -> None:
    for (key, entry), (_, other) in zip(state.each(), expected.each(), strict=True):
        np.testing.assert_array_equal(entry.variable.numpy(), other.variable.numpy(), key)


Create = Callable[[int], Gang]


@pytest.fixture
def gang(tmp_path: pathlib.Path, create_files: Callable[[], Files]) -> Create:
    """Begins a job of so many processes."""
    return lambda count: Gang(count, tmp_path, create_files)


def kept(partner: int, process: int) -> str:
    return f"memory (worker-{partner} kept the copy of worker-{process})"


@pytest.mark.parametrize(("count", "lost"), [(2, 0), (2, 1), (3, 0), (3, 2), (4, 1)])
def test_a_partner_returns_the_copy_of_a_process_that_lost_its_memory(
    gang: Create, count: int, lost: int
) -> None:
    job = gang(count)
    assert job.run(last=4) == ([(None, job.folder_name)] * count, [])
    job.lose(lost)
    partner = (lost + max(1, count // 2)) % count
    assert job.run() == ([(checkpoints.at(4), kept(partner, lost))] * count, [])


def test_a_copy_of_the_state_that_was_restored_is_still_kept(gang: Create) -> None:
    """A process is lost, and then its successor, before the first copy of the next attempt."""
    job = gang(2)
    job.run(last=4)
    for _ in range(2):
        job.lose(1)
        assert job.run()[0] == [(checkpoints.at(4), kept(0, 1))] * 2
    assert job.run(5, 6)[0] == [(checkpoints.at(4), "memory")] * 2
    job.lose(0)
    assert job.run()[0] == [(checkpoints.at(6), kept(1, 0))] * 2


def test_processes_that_are_lost_with_their_partners_resume_from_the_checkpoint(
    gang: Create,
) -> None:
    job = gang(4)
    job.run(last=4)
    job.lose(1, 3)
    positions, messages = job.run()
    assert [position for position, _ in positions] == [checkpoints.at(1)] * 4
    sentence = "no copy of worker-1's state in memory can be used: the newest checkpoint is read"
    assert messages == [sentence]


def test_processes_that_are_lost_without_their_partners_get_their_copies(gang: Create) -> None:
    job = gang(4)
    job.run(last=4)
    job.lose(0, 1)
    positions, _ = job.run()
    source = "worker-2 kept the copy of worker-0; worker-3 kept the copy of worker-1"
    assert positions == [(checkpoints.at(4), f"memory ({source})")] * 4


@pytest.mark.parametrize("is_lost", [True, False])
def test_a_damaged_copy_of_the_partner_is_passed_over(gang: Create, *, is_lost: bool) -> None:
    """The step before serves, and after two damaged copies the checkpoint."""
    job = gang(2)
    job.run(last=4)
    of_itself, of_others = slice(0, 2), slice(2, 4)
    newest = np.full((4, 6), 104, "float32")
    job.damage(0, newest, of_others)
    if is_lost:
        job.lose(1)
    else:
        job.damage(1, newest, of_itself)
    positions, messages = job.run()
    source = kept(0, 1) if is_lost else "memory"
    assert positions == [(checkpoints.at(3), source)] * 2
    damaged = "skipping the copy of step 4 in memory: memory/part-00000.bin is damaged at model"
    assert all(message.startswith(damaged) for message in messages)
    assert len(messages) == (1 if is_lost else 2)
    job.damage(0, np.full((4, 6), 103, "float32"), of_others)
    job.lose(1)
    positions, messages = job.run()
    assert [position for position, _ in positions] == [checkpoints.at(1)] * 2
    assert "no copy of worker-1's state in memory can be used" in messages[-1]


def test_a_damaged_copy_of_a_process_is_replaced_by_that_of_its_partner(gang: Create) -> None:
    job = gang(2)
    job.run(last=4)
    job.damage(1, np.full((4, 6), 104, "float32"), slice(0, 2))
    positions, messages = job.run()
    assert positions == [(checkpoints.at(4), kept(0, 1))] * 2
    assert len(messages) == 1
    assert job.run()[0] == [(checkpoints.at(4), "memory")] * 2


def test_a_copy_whose_transfer_was_cut_off_is_none(
    gang: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = gang(2)
    job.run(last=3)
    with monkeypatch.context() as patched:
        patched.setattr(checkpoints.QueueChannel, "is_cut", True)
        results, _ = job.run(4, 4)
    assert all(isinstance(result, errors.PeerLostError) for result in results)
    job.lose(0)
    assert job.run()[0] == [(checkpoints.at(3), kept(1, 0))] * 2


def test_a_newer_checkpoint_comes_before_copies_of_partners(gang: Create) -> None:
    job = gang(2)
    job.run(last=4)
    files, job.files = job.files, [(), ()]
    job.run(5, 5, saved=5)
    job.files = files
    job.lose(1)
    assert [position for position, _ in job.run()[0]] == [checkpoints.at(5)] * 2


def test_a_process_without_an_agent_keeps_nothing_for_others(gang: Create) -> None:
    job = gang(2)
    job.files = [files[:2] for files in job.files]
    job.run(last=4)
    assert job.run() == ([(checkpoints.at(4), "memory")] * 2, [])
    job.lose(1)
    assert [position for position, _ in job.run()[0]] == [checkpoints.at(1)] * 2


def test_too_little_memory_for_a_partner_is_said_and_leaves_the_own_copies(
    gang: Create, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two copies take 8.4 KiB, four 16.8 KiB."""
    monkeypatch.setattr(devices, "free_bytes", lambda: 4 * 12_000.0)
    job = gang(2)
    _, messages = job.run(last=4)
    assert sorted(messages) == [
        f"warning: no copies are kept for another process, because copies, those of worker-{other} "
        "among them, take 16.8 KiB, and 25% of the free memory are 11.7 KiB; if a pod is lost, a "
        "restart resumes from the newest checkpoint"
        for other in range(2)
    ]
    assert [os.fstat(file).st_size for files in job.files for file in files[2:]] == [0] * 4
    assert job.run()[0] == [(checkpoints.at(4), "memory")] * 2


class Replicas:
    """Processes of which the chief has the state of all, as replicas of a model have it."""

    def __init__(self, count: int, folder: pathlib.Path, files: Sequence[Files]) -> None:
        self.state = checkpoints.state(0)
        self._processes = checkpoints.Processes(count, folder, memory_files=files)

    def run(self, last: int) -> list[Any]:
        """Restore, and then copy the state of some steps."""

        def work(me: int, _: store.Store) -> Any:
            memory: memory_copies.MemoryCopies = self._processes.memory[me]
            state = self.state if me == 0 else None
            position = memory.restore(state, oldest=0)
            if state is not None and position is not None:
                assert_equal(state, checkpoints.state(position.step))
            assert memory.reserve(state)
            for step in range(1, last + 1):
                if state is not None:
                    assign(state, checkpoints.state(step))
                    memory.copy(checkpoints.index(step)).seal()
                memory.exchange()
            return position, memory.source

        return self._processes.run(work)


def has_content(file: int) -> bool:
    return os.fstat(file).st_size > 0


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_one_other_process_has_the_state_that_all_share(
    tmp_path: pathlib.Path, create_files: Callable[[], Files], lost: int
) -> None:
    files = [create_files() for _ in range(3)]
    Replicas(3, tmp_path, files).run(3)
    assert [sum(map(has_content, opened)) for opened in files] == [2, 2, 0]
    files[lost] = create_files()
    source = "memory (worker-1 kept the copy of worker-0)" if lost == 0 else "memory"
    results = Replicas(3, tmp_path, files).run(0)
    assert results == [(checkpoints.at(3), source), (None, source), (None, source)]


@pytest.mark.parametrize(
    ("machines", "holders", "distance"),
    [
        ([1, 1], [0, 1], 1),
        ([1, 1, 1], [0, 1, 2], 1),
        ([1, 1, 2, 2], [0, 1, 2, 3], 2),
        ([1, 1, 2, 2, 3, 3], [0, 1, 2, 3, 4, 5], 3),
        ([1, 2, 1, 2], [0, 1, 2, 3], 1),
        ([1, 1, 1, 2], [0], 3),
        ([1, 1, 1, 2], [0, 1, 2, 3], 2),
        ([1, 1, 2, 1, 1, 2], [0, 1, 2, 3, 4, 5], 2),
    ],
)
def test_partners_are_on_another_machine_where_possible(
    machines: list[int], holders: list[int], distance: int
) -> None:
    assert partners.choose_distance(machines, holders) == distance
