"""The chief's engine: gives batches to workers, takes what their steps return, and adds it up."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.data import batching, nest
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.servers import ledger, presence, steps
from tfparallel_trainer.objective import evaluate, metrics, replica

_WAITING_PER_WORKER = 3
"""Batches that are given out at once for each worker: one in work, the others on their way."""


@dataclasses.dataclass(slots=True)
class Staleness:
    """How many steps of others came between reading the weights and applying a gradient."""

    total: int = 0
    steps: int = 0
    largest: int = 0
    dropped: int = 0
    """Gradients that were older than the bound."""

    def add(self, staleness: int, applied: bool) -> None:
        """Take in a step."""
        if not applied:
            self.dropped += 1
            return
        self.total += staleness
        self.steps += 1
        self.largest = max(self.largest, staleness)

    def values(self, bounded: bool) -> dict[str, float]:
        """As metrics."""
        metrics = {
            "staleness_mean": self.total / max(self.steps, 1),
            "staleness_max": float(self.largest),
        }
        return {**metrics, "dropped": float(self.dropped)} if bounded else metrics


@dataclasses.dataclass(frozen=True, slots=True)
class Work:
    """A batch that is given out."""

    step: int
    batch: batching.Batch


class Asynchronous:
    """Steps of workers that do not wait for each other; an `engine.Engine`."""

    def __init__(
        self,
        ledger: ledger.Ledger[Work],
        workers: presence.Workers,
        replica: replica.Replica,
        traced: steps.Steps,
        training: batching.Source,
        evaluation: batching.Source | None,
        bounded: bool,
    ) -> None:
        """Train a replica whose variables are on the servers; `bounded`: drop stale gradients."""
        self._ledger = ledger
        self._workers = workers
        self._limit = waiting(len(workers.steps))
        self._replica = replica
        self._bounded = bounded
        self._steps = traced
        self._evaluation = evaluation
        self._train = traced.training(training.spec)
        self._evaluate = None if evaluation is None else traced.evaluation(evaluation.spec)
        self._results: list[engine.StepResult] = []
        self._states = self._nothing()
        self.staleness = Staleness()

    @property
    def pending(self) -> int:
        """How many steps are given and not made yet."""
        return len(self._ledger)

    def reset(self) -> None:
        """Forget what the metrics have seen."""
        self._states = self._nothing()

    def give(
        self, step: int, batch: batching.Batch, asked: frozenset[engine.Flag]
    ) -> tuple[Sequence[engine.StepResult], frozenset[engine.Flag]]:
        """Give a batch to the next worker that is free."""
        self._send(Work(step, batch))
        while len(self._ledger) >= self._limit:
            self._take_in(self._ledger.take())
        self._take_in(self._ledger.ready())
        return self._collected(), asked

    def settle(self) -> Sequence[engine.StepResult]:
        """Return when no step is pending."""
        while self._ledger:
            self._take_in(self._ledger.take())
        self._steps.count()
        return self._collected()

    def metrics(self) -> dict[str, float]:
        """The metrics over all steps since they were reset, and staleness over all steps."""
        values = metrics.results(self._replica, steps.states(self._replica, self._states))
        return {**values, **self.staleness.values(self._bounded)}

    def evaluate(self, watched: engine.Watched) -> dict[str, float] | None:
        """Evaluate on all workers; no step may be pending."""
        if self._evaluation is None:
            return None
        sums = 2 * len(self._replica.terms)
        total = np.concatenate([np.zeros(sums), self._nothing()])
        for vector in self._evaluated(watched(self._evaluation.epoch(0, 0))):
            total += vector
        values = metrics.results(self._replica, steps.states(self._replica, total[sums:]))
        return {**evaluate.losses(self._replica, total[:sums].reshape(2, -1)), **values}

    def weights_are_finite(self) -> bool:
        """Read the weights from the servers and look."""
        weights = self._replica.model.trainable_variables
        return all(bool(np.isfinite(np.asarray(weight)).all()) for weight in weights)

    def barrier(self) -> None:
        """The chief alone runs the loop."""

    def _evaluated(self, batches: Iterable[batching.Batch]) -> Iterator[Any]:
        for number, batch in enumerate(batches):
            self._ledger.send(Work(number, batch), self._evaluate, (_leaves(batch),))
            while len(self._ledger) >= self._limit:
                yield from (result for _, result in self._ledger.take())
        while self._ledger:
            yield from (result for _, result in self._ledger.take())

    def _send(self, work: Work) -> None:
        number = tf.constant(work.step, tf.int64)
        self._ledger.send(work, self._train, (number, _leaves(work.batch)))

    def _take_in(self, results: Iterable[tuple[Work, Any]]) -> None:
        for work, vector in results:
            result = steps.Result.of(vector, len(self._replica.terms))
            self.staleness.add(result.staleness, result.applied)
            if not result.applied:
                self._send(work)
                continue
            self._workers.count_step(result.worker)
            self._states = self._states + result.contributions
            losses = {"loss": result.loss, **self._replica.by_output(result.terms)}
            finite = math.isfinite(result.loss)
            step_result = engine.StepResult(losses, work.batch.examples, finite, result.staleness)
            self._results.append(step_result)

    def _collected(self) -> Sequence[engine.StepResult]:
        results, self._results = self._results, []
        return results

    def _nothing(self) -> np.ndarray:
        """The states of metrics that have seen nothing, one after the other."""
        shapes = (variable.shape for variable in self._replica.model.metrics_variables)
        return np.zeros(sum(math.prod(shape) for shape in shapes))


def waiting(workers: int) -> int:
    """How many batches are given out at once to so many workers."""
    return workers * _WAITING_PER_WORKER


def _leaves(batch: batching.Batch) -> list[tf.Tensor]:
    return [tf.convert_to_tensor(leaf) for leaf in nest.leaves(batch.parts[0])]
