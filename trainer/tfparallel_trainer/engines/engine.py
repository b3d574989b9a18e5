"""The interface between the training loop and an engine."""

import abc
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import cluster
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batch_division, fingerprints
from tfparallel_trainer.engines import setup
from tfparallel_trainer.objective import evaluate, independence, state, train_step
from tfparallel_trainer.objective.replica import Replica
from tfparallel_trainer.reporting import stragglers


class StepRequest(enum.IntEnum):
    """What a process may request with a step. All processes learn of it in the same step."""

    STOP = 0
    """A process was asked to end."""
    REPORT = 1
    """The chief wants to report."""
    SAVE = 2
    """By the chief's clock it is time for a checkpoint."""
    METRICS = 3
    """Observers want the metrics of each step. All processes request them, or none does."""
    CHANGED = 4
    """Observers have changed variables since the last step. All processes say so, or none does."""
    FAILED = 5
    """A process could not write a checkpoint, so all processes exit."""
    COPY = 6
    """By the chief's clock it is time to copy the state in memory."""
    COMPARE = 7
    """By the chief's clock it is time to compare how long replicas take for a step."""


Check = Callable[[], verification.Check]
"""Compares a step with one process, and tells how near it is."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an optimizer step, the same on every process."""

    losses: dict[str, float]
    """The loss. A model with several outputs also has the loss of each output."""
    examples: int
    finite: bool
    """Whether the loss and, where they are looked at, all gradients are finite numbers."""
    staleness: int | None = None
    """Number of other workers' steps between reading the weights and applying the gradient. None:
    all ranks make each step together."""
    requests: frozenset[StepRequest] = frozenset()
    """Requests of all processes, if all make each step together."""
    metrics: dict[str, float] | None = None
    """Metrics over all ranks. None: the step does not add them up."""
    check: Check | None = None
    """Compares the step with one process; call it before the next step. None: that is not due."""

    @property
    def loss(self) -> float:
        """The loss of all outputs."""
        return self.losses["loss"]


Watched = Callable[[Iterator[batch_division.Batch]], Iterator[batch_division.Batch]]
"""Iterates over batches, and reports each as done."""


Numbers = npt.NDArray[np.float64]

REQUESTS = len(StepRequest) + fingerprints.SUMMANDS
"""Numbers that a process adds to the sum over all processes in a step."""


class Step(abc.ABC):
    """Computes a step of all ranks at each call. Each engine defines `compute`."""

    def __init__(
        self,
        module: user.Module,
        replica: Replica,
        parts: int,
        targets: Any = None,
        *,
        leaves_out: bool = False,
    ) -> None:
        """Take a replica of this process, and the number of parts of a batch.

        `targets` come from all over the data, if the data has them at hand. With `leaves_out`, a
        step that is not finite changes nothing but the seeds.
        """
        self.module = module
        self.leaves_out = leaves_out
        self._replica = replica
        self._targets = targets
        self._is_tried = parts == 1
        self.referee: Callable[[int, batch_division.Batch, bool], Check | None] | None = None
        """Returns what compares a step, by its number from 1, with one process. None: that is not
        due. It takes the batch, and whether observers changed variables since the last step."""

    @property
    def may_repeat(self) -> bool:
        """Whether one call of TensorFlow may compute several steps."""
        return False

    def prepare_executions(self) -> bool:
        """Build what computes several steps in one call, if the step allows that; whether it does.

        The answer is the same on every process.
        """
        return False

    def run_steps(
        self, step: int, batches: Sequence[batch_division.Batch], requests: frozenset[StepRequest]
    ) -> list[StepResult]:
        """Compute a step on each batch; `step` is the number of the first one, from 0.

        The requests of this process go with the first step. After a step that is not finite, and
        whose gradients are applied, there may be fewer results than batches.
        """
        results: list[StepResult] = []
        while len(results) < len(batches):
            remaining, number = batches[len(results) :], step + len(results)
            count = self.count_together(remaining, requests)
            if count == 1:
                results.append(self(number, remaining[0], requests))
            else:
                results += self._execute(number, remaining[:count], requests)
            requests &= {StepRequest.METRICS}
            if not (self.leaves_out or all(result.finite for result in results)):
                break
            if len(results) < len(batches):
                results[-1] = _checked(results[-1])
        return results

    def __call__(
        self, step: int, batch: batch_division.Batch, requests: frozenset[StepRequest]
    ) -> StepResult:
        """Compute a step, by its number from 0, on a batch, with the requests of this process.

        Different examples in two processes raise a UserCodeError.
        """
        self._check_examples(batch)
        gives_metrics = StepRequest.METRICS in requests
        numbers = _numbers(batch, requests)
        output = self.compute(step, batch, numbers, gives_metrics=gives_metrics)
        return self._result(step, batch, output)

    def _execute(
        self, step: int, batches: Sequence[batch_division.Batch], requests: frozenset[StepRequest]
    ) -> list[StepResult]:
        """Compute several steps in one execution."""
        self._check_examples(batches[0])
        rows = [_numbers(batches[0], requests)]
        rows += [_numbers(batch, frozenset()) for batch in batches[1:]]
        outputs = self.compute_together(step, batches, np.stack(rows))
        return [
            self._result(step + index, batch, output)
            for index, (batch, output) in enumerate(zip(batches, outputs, strict=True))
        ]

    def _check_examples(self, batch: batch_division.Batch) -> None:
        part = next((part for part in batch.parts if part is not None), None)
        if not self._is_tried and part is not None:
            self._is_tried = True
            self.check(part)

    def _result(
        self, step: int, batch: batch_division.Batch, output: train_step.StepOutput
    ) -> StepResult:
        sums = output.requests
        if not fingerprints.alike(sums[len(StepRequest) :]):
            raise errors.UserCodeError(
                f"Replicas received different examples (first seen in step {step + 1}): "
                "give the same in the same order everywhere. Sort lists of files, and let what is "
                "random follow from a seed: in the function training_data from context.seed and "
                "context.epoch, in a script from a seed that all replicas share.",
                function="training_data",
            ).on_every_process()
        check = None
        if self.referee is not None and output.finite:
            check = self.referee(step + 1, batch, bool(sums[StepRequest.CHANGED] > 0))
        return StepResult(
            losses={"loss": float(output.loss), **self._replica.by_output(output.terms)},
            examples=batch.examples,
            finite=bool(output.finite),
            requests=frozenset(request for request in StepRequest if sums[request] > 0),
            metrics=output.metrics,
            check=check,
        )

    @abc.abstractmethod
    def compute(
        self, step: int, batch: batch_division.Batch, requests: Numbers, *, gives_metrics: bool
    ) -> train_step.StepOutput:
        """Compute a step and apply its gradients.

        `requests` are the numbers that this process adds to the sum over all processes. They are
        each request as 0 or 1, and the fingerprint of the batch. The output has metrics if the
        engine adds them up in steps.
        """

    def count_together(
        self, batches: Sequence[batch_division.Batch], requests: frozenset[StepRequest]
    ) -> int:
        """How many of the first batches `compute_together` takes, the same on every process."""
        return 1

    def compute_together(
        self, step: int, batches: Sequence[batch_division.Batch], requests: Numbers
    ) -> Sequence[train_step.StepOutput]:
        """Compute steps in one execution, without metrics; `requests` has a row for each."""
        raise NotImplementedError

    def check(self, part: Any) -> None:
        """Refuse a model in which examples depend on each other, by trying it on these."""
        with user.guard(self.module.path, "computing the loss of some examples raised"):
            independence.check(self._replica, part, self._targets)


def _checked(result: StepResult) -> StepResult:
    """The result of a step whose check, if one is due, is made: another step follows."""
    if result.check is None:
        return result
    check = result.check()
    return dataclasses.replace(result, check=lambda: check)


def _numbers(batch: batch_division.Batch, requests: frozenset[StepRequest]) -> Numbers:
    """What a process adds to the sum of a step over all: [REQUESTS]."""
    is_requested = [float(request in requests) for request in StepRequest]
    return np.array([*is_requested, *fingerprints.summands(batch.fingerprint)])


class Engine(Protocol):
    """Computes one step for each submitted batch, in any order."""

    @property
    def may_repeat(self) -> bool:
        """Whether one call of TensorFlow may compute several steps."""

    def prepare_executions(self) -> bool:
        """Build what computes several steps in one call, if the step allows that; whether it does.

        The answer is the same on every process.
        """

    @property
    def pending(self) -> int:
        """Number of submitted steps without a result."""

    def reset(self) -> None:
        """Reset the metrics."""

    def submit(
        self, step: int, batches: Sequence[batch_division.Batch], requests: frozenset[StepRequest]
    ) -> tuple[Sequence[StepResult], frozenset[StepRequest]]:
        """Submit batches; `step` is the number of the first one's step, from 0.

        Return the results that are ready, and the requests of all processes.
        """

    def drain(self) -> Sequence[StepResult]:
        """Wait for all pending steps, and return the results since the last call."""

    def metrics(self) -> dict[str, float]:
        """The metrics since the last reset, and other numbers that describe training."""

    def measure_efforts(self) -> Mapping[str, stragglers.Effort]:
        """What each replica that is here has spent on its steps so far; empty: not measured.

        All processes that run this loop call it alike.
        """

    def evaluate(self, watched: Watched) -> dict[str, float] | None:
        """Loss and metrics over the evaluation data. None: the job has none."""

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are finite. No step may be pending."""

    def barrier(self) -> None:
        """Return once all processes that run this loop have called it."""


class Synchronous:
    """All ranks compute each step together, so a step has its result when it is submitted."""

    pending = 0

    def __init__(
        self,
        replicas: Sequence[Replica],
        step: Step,
        evaluator: evaluate.Evaluator | None,
        examples: batch_division.BatchSource | None,
    ) -> None:
        """Take the replicas of this process, and the evaluation data."""
        self._replicas = replicas
        self._step = step
        self._evaluator = evaluator
        self._examples = examples
        self._latest: dict[str, float] | None = None

    @property
    def may_repeat(self) -> bool:
        """Whether one call of TensorFlow may compute several steps."""
        return self._step.may_repeat

    def prepare_executions(self) -> bool:
        """Build what computes several steps in one call, if the step allows that."""
        return self._step.prepare_executions()

    def reset(self) -> None:
        """Reset the metrics."""
        self._latest = None
        evaluate.reset_metrics(self._replicas)

    def submit(
        self, step: int, batches: Sequence[batch_division.Batch], requests: frozenset[StepRequest]
    ) -> tuple[Sequence[StepResult], frozenset[StepRequest]]:
        """Compute the steps."""
        results = self._step.run_steps(step, batches, requests)
        self._latest = results[-1].metrics
        return results, frozenset().union(*(result.requests for result in results))

    def drain(self) -> Sequence[StepResult]:
        """Nothing is ever pending."""
        return []

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks, from the last step if it added them up."""
        return self.reduce_metrics() if self._latest is None else self._latest

    def measure_efforts(self) -> Mapping[str, stragglers.Effort]:
        """Nothing is measured."""
        return {}

    def reduce_metrics(self) -> dict[str, float]:
        """Sum the metrics over all ranks."""
        return self._report.metrics()

    @functools.cached_property
    def _report(self) -> evaluate.MetricReduction:
        return evaluate.MetricReduction(self._replicas)

    def weights_are_finite(self) -> bool:
        """Whether all trained weights are finite, the same on every process."""
        return self._finiteness()

    @functools.cached_property
    def _finiteness(self) -> Callable[[], bool]:
        return state.finiteness(self._replicas[0])

    def barrier(self) -> None:
        """Return once every rank has called it."""
        self._barrier()

    @functools.cached_property
    def _barrier(self) -> Callable[[], object]:
        return state.barrier(self._replicas)

    def evaluate(self, watched: Watched) -> dict[str, float] | None:
        """Evaluate on all ranks."""
        if self._evaluator is None or self._examples is None:
            return None
        self._latest = None
        return self._evaluator.run(watched(self._examples.epoch(0, 0)))


class RunTemplate(abc.ABC):
    """Template of a run. The methods are called in this order."""

    def __init__(self, context: setup.RunContext) -> None:
        self.context = context
        self.barrier: Callable[[], object] | None = None
        """Returns once all processes have called it. None before `prepare` sets it. The run calls
        it at the end, so that no process leaves before the others have finished.
        """

    @abc.abstractmethod
    def connect(self) -> AbstractContextManager[None]:
        """Connect to the other processes while the body runs."""

    def watch_peers(self) -> AbstractContextManager[None]:
        """Exit if a process that this one needs is lost, while the body runs."""
        peers = cluster.watched(self.context.settings.cluster)
        return cluster.watching(peers, self.context.give_up)

    @abc.abstractmethod
    def prepare(self) -> setup.EngineSetup:
        """Build what is trained, load the data and restore the newest checkpoint."""

    @abc.abstractmethod
    def build_engine(self, engine_setup: setup.EngineSetup) -> Engine:
        """Build the engine that trains the prepared model."""

    @abc.abstractmethod
    def describe(self, total: int | None) -> Iterable[str]:
        """Lines for the log that describe the run. `total`: number of steps, if known."""
