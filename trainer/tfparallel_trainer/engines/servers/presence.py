"""Watches which workers and servers are available.

Training continues without a worker, but not without a server.

A process that has ended no longer listens at its port. A process that hangs, or whose node is
unreachable, no longer asks the chief whether training continues.
"""

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster
from tfparallel_trainer.engines.servers import control
from tfparallel_trainer.reporting import stragglers

SILENCE_SECONDS = 30.0
"""Seconds without a question after which a process counts as hung; processes ask once a second."""

_INTERVAL_SECONDS = 1.0


@dataclasses.dataclass
class Workers:
    """Which workers are available, and how many steps each has made."""

    workers: Sequence[tasks.Task]
    answers: control.Control
    say: Callable[[str], None]

    def __post_init__(self) -> None:
        self._gone: set[tasks.Task] = set()
        self._back: set[tasks.Task] = set()
        self._hung: set[tasks.Task] = set()
        self._lives: dict[tasks.Task, str] = {}
        self.steps = {worker.name: 0 for worker in self.workers}
        """Steps of this attempt by worker."""
        self._computed = dict.fromkeys(self.steps, 0)
        """The same with those whose gradients were dropped."""

    @property
    def missing(self) -> bool:
        """Whether no worker is available."""
        return len(self._gone | self._hung) == len(self.workers)

    def count_hung(self) -> int:
        """Return how many workers are hung."""
        return len(self._hung)

    def measure_efforts(self) -> dict[str, stragglers.Effort]:
        """Return what each available worker has spent on its steps, from its first one on."""
        now, absent = time.monotonic(), [*self._gone, *self._hung, *self._back]
        return {
            worker.name: stragglers.Effort(self._computed[worker.name], now)
            for worker in self.workers
            if worker not in absent and self._computed[worker.name]
        }

    def count_step(self, index: int, *, is_applied: bool = True) -> None:
        """Count a step of a worker."""
        worker = self.workers[index]
        self.steps[worker.name] += is_applied
        self._computed[worker.name] += 1
        if worker in self._back:
            self._back.discard(worker)
            self.say(f"{worker.name} makes steps again")

    def look(self) -> None:
        """Check each worker once, and log what has changed."""
        for worker in self.workers:
            self._look_at(worker)

    def _look_at(self, worker: tasks.Task) -> None:
        gone = cluster.refuses(worker)
        if gone and worker not in self._gone:
            self._gone.add(worker)
            self._hung.discard(worker)
            self._lives.pop(worker, None)
            self.answers.forget(worker.name)
            self.say(f"{worker.name} is gone ({worker.address}); it may come back there")
        elif not gone and (self._replaced(worker) or worker in self._gone):
            self._gone.discard(worker)
            self._back.add(worker)
            self.say(f"{worker.name} is back")
        if gone:
            return
        silent = self.answers.silence(worker.name) > SILENCE_SECONDS
        if silent and worker not in self._hung:
            self._hung.add(worker)
            self.say(
                f"{worker.name} has not asked for {SILENCE_SECONDS:g} s ({worker.address}): it is "
                "frozen or out of reach, and its batch is given to another"
            )
        elif not silent and worker in self._hung:
            self._hung.remove(worker)
            self._back.add(worker)
            self.say(f"{worker.name} asks again")

    def _replaced(self, worker: tasks.Task) -> bool:
        """Whether a new process has replaced a worker before anyone saw it gone."""
        before, life = self._lives.get(worker, ""), self.answers.life(worker.name)
        if life:
            self._lives[worker] = life
        return "" not in (before, life) and before != life


@contextlib.contextmanager
def watching(
    workers: Workers,
    servers: Sequence[tasks.Task],
    answers: control.Control,
    limit: float,
    give_up: Callable[[errors.TrainerError], None],
) -> Iterator[None]:
    """Watch workers and servers from a thread while the body runs.

    After `limit` seconds without any worker, the run gives up.
    """
    over = threading.Event()

    def look() -> None:
        seen_at = time.monotonic()
        while not over.wait(_INTERVAL_SECONDS):
            for server in servers:
                if answers.silence(server.name) > SILENCE_SECONDS:
                    give_up(
                        errors.PeerLostError(
                            f"A peer was lost: {server.name} ({server.address}) has not asked for "
                            f"{SILENCE_SECONDS:g} s, so it is frozen or out of reach. It holds a "
                            "part of the weights."
                        )
                    )
            workers.look()
            if not workers.missing:
                seen_at = time.monotonic()
            elif time.monotonic() - seen_at > limit:
                give_up(
                    errors.PeerLostError(
                        f"A peer was lost: no worker has been there for {limit:g} s "
                        "(startTimeoutSeconds)."
                    )
                )

    threading.Thread(target=look, name="presence", daemon=True).start()
    with cluster.watching(servers, give_up):
        try:
            yield
        finally:
            over.set()
