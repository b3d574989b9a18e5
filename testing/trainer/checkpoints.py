"""States of a small model, and stores that take them."""

import itertools
import pathlib
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, memory_copies, shard, store
from tfparallel_trainer.comms import agreement, channels
from tfparallel_trainer.storage import folder as folders


class QueueChannel:
    """A channel between two threads, which has one block at a time."""

    is_cut = False
    """Whether the sender is lost after its first block."""
    _block_bytes = 1000

    def __init__(self) -> None:
        self._blocks = queue.Queue[bytes | None](maxsize=1)

    def send(self, length: int, read: Callable[[int, int], bytes]) -> None:
        """Send so many bytes."""
        for offset in range(0, length, self._block_bytes):
            block = read(offset, min(self._block_bytes, length - offset))
            self._blocks.put(block, timeout=60)
            if self.is_cut:
                self._blocks.put(None, timeout=60)
                raise errors.PeerLostError("cut")
        self._blocks.put(b"", timeout=60)

    def receive(self) -> Iterator[bytes]:
        """Yield what the other thread sends."""
        while block := self._blocks.get(timeout=60):
            yield block
        if block is None:
            raise errors.PeerLostError("cut")


class Processes:
    """Threads that stand for the processes of a run, each with a store of its own."""

    def __init__(
        self,
        count: int,
        *directories: pathlib.Path,
        attempt: int = 1,
        memory_files: Sequence[Sequence[int]] = (),
    ) -> None:
        """Take the folder of all, or one of each process, and each process's files in memory."""
        self.messages: list[str] = []
        self.memory: dict[int, memory_copies.MemoryCopies] = {}
        """The copies in memory of each process."""
        self._count = count
        self._directories = directories
        self._attempt = attempt
        self._memory_files = memory_files or [()] * count
        self._gathered = [0] * count
        self._barrier = threading.Barrier(count)
        self._channels: dict[int, QueueChannel] = {}

    def run(self, work: Callable[[int, store.Store], Any]) -> list[Any]:
        """Give what the work of each process gives or raises."""
        results: list[Any] = [None] * self._count

        def one(me: int) -> None:
            try:
                results[me] = work(me, self._open(me))
            except errors.TrainerError as error:
                results[me] = error

        threads = [threading.Thread(target=one, args=(me,)) for me in range(self._count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        return results

    def _open(self, me: int) -> store.Store:
        def gather(number: int) -> Sequence[int]:
            self._gathered[me] = number
            self._barrier.wait(60)
            numbers = list(self._gathered)
            self._barrier.wait(60)
            return numbers

        numbers = itertools.count()

        def open_channel(source: int, target: int) -> channels.Channel | None:
            channel = self._channels.setdefault(next(numbers), QueueChannel())
            return channel if me in (source, target) else None

        names = tuple(f"worker-{number}" for number in range(self._count))
        together = agreement.Peers(me=me, names=names, gather=gather, open_channel=open_channel)
        memory = memory_copies.MemoryCopies(self._memory_files[me], together, self.messages.append)
        self.memory[me] = memory
        folder = folders.Folder(self._directories[me % len(self._directories)])
        return store.Store(
            folder,
            3,
            "a",
            self._attempt,
            self.messages.append,
            together,
            memory=memory,
        )


def variables(value: float) -> dict[str, keras.Variable]:
    return {
        "model/0/0": keras.Variable(np.full((2, 3), value), dtype="float32"),
        "model/0/1": keras.Variable(np.full((3,), value), dtype="bfloat16"),
        "optimizer/0": keras.Variable(int(value), dtype="int64"),
    }


def state(value: float) -> shard.State:
    return shard.undivided(variables(value))


def index(step: int) -> files.Index:
    return files.Index(attempt=1, position=at(step), parts=())


def at(step: int) -> files.Position:
    return files.Position(step=step, epoch=step // 10, example=step % 10)


def opened(
    folder: pathlib.Path, attempt: int | None = 1, keep: int = 2, job: str = "a"
) -> store.Store:
    return store.Store(folders.Folder(folder), keep, job, attempt, lambda _: None)
