"""Compares how long processes work on their steps, apart from waiting for each other."""

import time
from collections.abc import Mapping, Sequence

from tfparallel_trainer import tasks
from tfparallel_trainer.comms import agreement, collectives, wait_timer
from tfparallel_trainer.data import batch_division
from tfparallel_trainer.engines import engine
from tfparallel_trainer.objective import evaluate
from tfparallel_trainer.objective.replica import Replica
from tfparallel_trainer.reporting import input_wait, stragglers


class LocalWork:
    """The time that this process has worked on its steps, for the comparison with the others."""

    def __init__(
        self, replicas: Sequence[Replica], cluster: tasks.Cluster, wait: input_wait.Wait
    ) -> None:
        """Time the ranks of this process; call it before a step is traced.

        Args:
            replicas: of this process.
            cluster: all processes.
            wait: how long this process waits for its input.
        """
        self._names = [task.name for task in cluster.tasks]
        self._input = wait
        self._timers = [wait_timer.WaitTimer(replica.device) for replica in replicas]
        for replica, timer in zip(replicas, self._timers, strict=True):
            replica.data.timer = timer
        self._exchange = agreement.Numbers(
            cluster, replicas[0].device, collectives.Program.COMPARE_PACES, 1
        )
        self._steps = 0
        self._busy = self._waited = self._worked = 0.0

    def add(self, steps: int, seconds: float) -> None:
        """Take in steps whose computation, with waiting, took so many seconds."""
        self._steps += steps
        self._busy += seconds

    def compare(self) -> Mapping[str, stragglers.Effort]:
        """Return what each process has spent on its steps; all processes call it alike."""
        # The last rank of a process to come to the sum waits the least.
        waited = min(timer.seconds for timer in self._timers)
        # The clock of the timers may be set.
        self._worked += self._busy - min(self._busy, max(0.0, waited - self._waited))
        self._busy, self._waited = 0.0, waited
        microseconds = round(1e6 * (self._worked + self._input.seconds))
        table = self._exchange([microseconds])
        return {
            name: stragglers.Effort(self._steps, number / 1e6)
            for name, (number,) in zip(self._names, table, strict=True)
        }


class ComparedSynchronous(engine.Synchronous):
    """The engine of several processes, which say how long each works on its steps."""

    def __init__(
        self,
        replicas: Sequence[Replica],
        step: engine.Step,
        evaluator: evaluate.Evaluator | None,
        examples: batch_division.BatchSource | None,
        work: LocalWork,
    ) -> None:
        """Take what `engine.Synchronous` takes, and the work of this process."""
        super().__init__(replicas, step, evaluator, examples)
        self._work = work

    def submit(
        self,
        step: int,
        batches: Sequence[batch_division.Batch],
        requests: frozenset[engine.StepRequest],
    ) -> tuple[Sequence[engine.StepResult], frozenset[engine.StepRequest]]:
        """Compute the steps, and time them."""
        began = time.perf_counter()
        results, all_requests = super().submit(step, batches, requests)
        self._work.add(len(results), time.perf_counter() - began)
        return results, all_requests

    def measure_efforts(self) -> Mapping[str, stragglers.Effort]:
        """What each process has spent on its steps, apart from waiting for the others."""
        return self._work.compare()
