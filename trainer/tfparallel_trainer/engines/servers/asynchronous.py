"""The chief's engine: sends batches to workers, and adds up the results of their steps."""

import dataclasses
import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.servers import presence, server_referee, worker_steps
from tfparallel_trainer.engines.servers.ledger import Ledger
from tfparallel_trainer.engines.servers.worker_steps import WorkerFunctions
from tfparallel_trainer.objective import evaluate, metric_sums
from tfparallel_trainer.objective.replica import Replica
from tfparallel_trainer.reporting import stragglers

_WAITING_PER_WORKER = 3
"""Pending batches per worker: the worker computes one, the others are queued."""


@dataclasses.dataclass(slots=True)
class Staleness:
    """Statistics of staleness.

    Staleness is the number of other workers' steps between reading the weights and applying a
    gradient.
    """

    total: int = 0
    steps: int = 0
    largest: int = 0
    dropped: int = 0
    """Number of gradients whose staleness exceeded the bound."""

    def add(self, staleness: int, applied: bool) -> None:
        """Count a step."""
        if not applied:
            self.dropped += 1
            return
        self.total += staleness
        self.steps += 1
        self.largest = max(self.largest, staleness)

    def values(self, bounded: bool) -> dict[str, float]:
        """The statistics as metrics."""
        metrics = {
            "staleness_mean": self.total / max(self.steps, 1),
            "staleness_max": float(self.largest),
        }
        return {**metrics, "dropped": float(self.dropped)} if bounded else metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A batch that a worker computes."""

    step: int
    batch: batch_division.Batch


@dataclasses.dataclass(kw_only=True)
class Asynchronous:
    """Steps of workers that do not wait for each other; an `engine.Engine`."""

    may_repeat = False

    ledger: Ledger[Work]
    workers: presence.Workers
    replica: Replica
    """The replica whose variables are on the servers."""
    steps: WorkerFunctions
    training: batch_division.BatchSource
    evaluation: batch_division.BatchSource | None
    referee: server_referee.ServerReferee | None = None
    """Compares steps with one process."""

    def __post_init__(self) -> None:
        self._limit = waiting(len(self.workers.steps))
        self._train = self.steps.training(self.training.spec)
        self.replica.closures.extend(self.steps.find_closures(self._train))
        if self.evaluation is not None:
            self._evaluate = self.steps.evaluation(self.evaluation.spec)
        self._results: list[engine.StepResult] = []
        self._omission: engine.Check | None = None
        """Says why a step cannot be compared; the next result has it."""
        self._states = self._nothing()
        self.staleness = Staleness()

    def prepare_executions(self) -> bool:
        """Workers compute single steps."""
        return False

    @property
    def pending(self) -> int:
        """Number of submitted steps without a result."""
        return len(self.ledger)

    def reset(self) -> None:
        """Reset the metrics."""
        self._states = self._nothing()

    def submit(
        self,
        step: int,
        batches: Sequence[batch_division.Batch],
        requests: frozenset[engine.StepRequest],
    ) -> tuple[Sequence[engine.StepResult], frozenset[engine.StepRequest]]:
        """Submit a batch to the next free worker."""
        (batch,) = batches
        changed = engine.StepRequest.CHANGED in requests
        if self.referee is not None and self.referee.is_due(batch.examples, changed=changed):
            self._omission = self.referee.omission(step)
            if self._omission is None:
                return self._give_alone(Work(step, batch), self.referee), requests
        self._send(Work(step, batch))
        while len(self.ledger) >= self._limit:
            self._take_in(self.ledger.take())
        self._take_in(self.ledger.ready())
        return self._collected(), requests

    def _give_alone(
        self, work: Work, referee: server_referee.ServerReferee
    ) -> Sequence[engine.StepResult]:
        """Run a step alone, after all earlier steps, and compare it with one process."""
        results = [*self.drain()]
        before, states = referee.state(), self._states
        self._states = self._nothing()
        self._send(work)
        (result,) = self.drain()
        measured = metric_sums.results(
            self.replica, worker_steps.states(self.replica, self._states)
        )
        self._states = states + self._states
        if result.finite:
            check = functools.partial(referee, work.step, work.batch, before, result.loss, measured)
            result = dataclasses.replace(result, check=check)
        return [*results, result]

    def drain(self) -> Sequence[engine.StepResult]:
        """Wait until no step is pending."""
        while self.ledger:
            self._take_in(self.ledger.take())
        self.steps.count()
        return self._collected()

    def metrics(self) -> dict[str, float]:
        """The metrics since the last reset, and the staleness of all steps."""
        values = metric_sums.results(self.replica, worker_steps.states(self.replica, self._states))
        bounded = self.steps.max_staleness is not None
        return {**values, **self.staleness.values(bounded)}

    def measure_efforts(self) -> Mapping[str, stragglers.Effort]:
        """The steps of each worker, which do not wait for each other."""
        if self.referee is not None and self.referee.is_always_due:
            return {}  # each step runs alone, on any worker
        return self.workers.measure_efforts()

    def evaluate(self, watched: engine.Watched) -> dict[str, float] | None:
        """Evaluate on all workers; no step may be pending."""
        if self.evaluation is None:
            return None
        sums = 2 * len(self.replica.terms)
        total = np.concatenate([np.zeros(sums), self._nothing()])
        for vector in self._evaluated(watched(self.evaluation.epoch(0, 0))):
            total += vector
        values = metric_sums.results(self.replica, worker_steps.states(self.replica, total[sums:]))
        return {**evaluate.losses(self.replica, total[:sums].reshape(2, -1)), **values}

    def weights_are_finite(self) -> bool:
        """Read the weights from the servers, and check that they are finite."""
        weights = self.replica.model.trainable_variables
        return all(bool(np.isfinite(np.asarray(weight)).all()) for weight in weights)

    def barrier(self) -> None:
        """The chief alone runs the loop."""

    def _evaluated(self, batches: Iterable[batch_division.Batch]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            self.ledger.send(Work(number, batch), self._evaluate, (_leaves(batch),))
            while len(self.ledger) >= self._limit:
                yield from (result for _, result in self.ledger.take())
        while self.ledger:
            yield from (result for _, result in self.ledger.take())

    def _send(self, work: Work) -> None:
        number = tf.constant(work.step, tf.int64)
        self.ledger.send(work, self._train, (number, _leaves(work.batch)))

    def _take_in(self, results: Iterable[tuple[Work, Any]]) -> None:
        for work, vector in results:
            worker, applied, staleness = map(int, vector[:3])
            loss = float(vector[3])
            self.staleness.add(staleness, bool(applied))
            self.workers.count_step(worker, is_applied=bool(applied))
            if not applied:
                self._send(work)
                continue
            terms, contributions = np.split(vector[4:], [len(self.replica.terms)])
            self._states = self._states + contributions
            losses = {"loss": loss, **self.replica.by_output(terms.tolist())}
            finite = math.isfinite(loss)
            step_result = engine.StepResult(
                losses, work.batch.examples, finite, staleness, check=self._omission
            )
            self._omission = None
            self._results.append(step_result)

    def _collected(self) -> Sequence[engine.StepResult]:
        results, self._results = self._results, []
        return results

    def _nothing(self) -> np.ndarray:
        """The states of the metrics after a reset, one after the other."""
        shapes = (variable.shape for variable in self.replica.model.metrics_variables)
        return np.zeros(sum(math.prod(shape) for shape in shapes))


def waiting(workers: int) -> int:
    """Number of pending batches for a number of workers."""
    return workers * _WAITING_PER_WORKER


def _leaves(batch: batch_division.Batch) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(leaf) for leaf in nest.leaves(batch.parts[0])]
