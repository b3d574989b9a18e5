"""States of a small model, and stores that take them."""

import pathlib
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, shard, store
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.storage import folder as folders


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
        self._count = count
        self._directories = directories
        self._attempt = attempt
        self._memory_files = memory_files or [()] * count
        self._gathered = [0] * count
        self._barrier = threading.Barrier(count)

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
            self._barrier.wait(30)
            numbers = list(self._gathered)
            self._barrier.wait(30)
            return numbers

        names = tuple(f"worker-{number}" for number in range(self._count))
        together = agreement.Peers(me=me, names=names, gather=gather)
        folder = folders.Folder(self._directories[me % len(self._directories)])
        return store.Store(
            folder,
            3,
            "a",
            self._attempt,
            self.messages.append,
            together,
            memory_files=self._memory_files[me],
        )


def variables(value: float) -> dict[str, keras.Variable]:
    return {
        "model/0/0": keras.Variable(np.full((2, 3), value), dtype="float32"),
        "model/0/1": keras.Variable(np.full((3,), value), dtype="bfloat16"),
        "optimizer/0": keras.Variable(int(value), dtype="int64"),
    }


def state(value: float) -> shard.State:
    return shard.undivided(variables(value))


def at(step: int) -> files.Position:
    return files.Position(step=step, epoch=step // 10, example=step % 10)


def opened(
    folder: pathlib.Path, attempt: int | None = 1, keep: int = 2, job: str = "a"
) -> store.Store:
    return store.Store(folders.Folder(folder), keep, job, attempt, lambda _: None)
