"""The interface between the training loop and an engine."""

import abc
import dataclasses
import enum
import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import cluster
from tfparallel_trainer.contract import verification
from tfparallel_trainer.data import batching, fingerprints
from tfparallel_trainer.engines import setup
from tfparallel_trainer.objective import evaluate, independence, state, train_step
from tfparallel_trainer.objective.replica import Replica


class StepRequest(enum.IntEnum):
    """What any process may request with a step; all learn of it in the same step."""

    STOP = 0
    """A process was asked to end."""
    REPORT = 1
    """The chief wants to report."""
    SAVE = 2
    """By the chief's clock it is time for a checkpoint."""
    METRICS = 3
    """Observers take the metrics of each step; all processes ask for them, or none."""
    CHANGED = 4
    """Observers have changed variables since the step before; all processes say so, or none."""
    FAILED = 5
    """A checkpoint could not be written on a process, which ends all."""


@dataclasses.dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an optimizer step, on every process alike."""

    losses: dict[str, float]
    """The loss, and with several outputs that of each."""
    examples: int
    finite: bool
    """Whether the loss and, where they are looked at, all gradients are finite numbers."""
    staleness: int | None = None
    """How many steps of others came between reading the weights and applying the gradient; None
    where all make each step together."""
    requests: frozenset[StepRequest] = frozenset()
    """Those of all processes, where all make each step together."""
    metrics: dict[str, float] | None = None
    """Over all ranks; None where the step adds none up."""
    check: verification.Check | None = None
    """How near the step is to one process, if this one was compared."""

    @property
    def loss(self) -> float:
        """The loss of all outputs."""
        return self.losses["loss"]


Watched = Callable[[Iterator[batching.Batch]], Iterator[batching.Batch]]
"""Goes through batches and says of each that it is done."""


REQUESTS = len(StepRequest) + fingerprints.SUMMANDS
"""How many numbers a process adds to the sum that a step makes over all of them."""


class Step(abc.ABC):
    """Makes the steps of all ranks together, each a call; `compute` is the engine's."""

    def __init__(
        self, module: user.Module, replica: Replica, parts: int, targets: Any = None
    ) -> None:
        """Take any replica of this process, and how many parts a batch is divided into.

        `targets` are some from all over the data, where it has them at hand.
        """
        self.module = module
        self._replica = replica
        self._targets = targets
        self._is_tried = parts == 1
        self.referee: Callable[[int, batching.Batch, bool], verification.Check | None] | None = None
        """Compares steps, by number from 1, with one process. It takes the batch, and whether
        observers have changed variables since the step before."""

    def __call__(
        self, step: int, batch: batching.Batch, requests: frozenset[StepRequest]
    ) -> StepResult:
        """Compute the step of a number, from 0, on a batch, with the requests of this process.

        If processes were given different examples, it is a UserCodeError.
        """
        part = next((part for part in batch.parts if part is not None), None)
        if not self._is_tried and part is not None:
            self._is_tried = True
            self.check(part)
        numbers = [float(request in requests) for request in StepRequest]
        numbers += fingerprints.summands(batch.fingerprint)
        gives_metrics = StepRequest.METRICS in requests
        output = self.compute(step, batch, numbers, gives_metrics=gives_metrics)
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
        self, step: int, batch: batching.Batch, requests: Sequence[float], *, gives_metrics: bool
    ) -> train_step.StepOutput:
        """Compute a step and apply its gradients.

        `requests` is what this process adds to the sum over all: its requests as 0 or 1, and the
        fingerprint of the batch. The output has metrics if the engine adds them up in steps.
        """

    def check(self, part: Any) -> None:
        """Refuse a model whose examples, of which these are some, depend on each other."""
        with user.guard(self.module.path, "computing the loss of some examples raised"):
            independence.check(self._replica, part, self._targets)


class Engine(Protocol):
    """Computes steps in any order; each batch that is submitted leads to one step."""

    @property
    def pending(self) -> int:
        """How many steps are submitted and have no result yet."""

    def reset(self) -> None:
        """Forget what the metrics have seen."""

    def submit(
        self, step: int, batch: batching.Batch, requests: frozenset[StepRequest]
    ) -> tuple[Sequence[StepResult], frozenset[StepRequest]]:
        """Submit a batch. Return the results that are ready and the requests of all processes."""

    def drain(self) -> Sequence[StepResult]:
        """Wait for all pending steps, and return the results since the last call."""

    def metrics(self) -> dict[str, float]:
        """The metrics over what they have seen, and what else tells how training goes."""

    def evaluate(self, watched: Watched) -> dict[str, float] | None:
        """Loss and metrics over the examples to evaluate on; None without such examples."""

    def weights_are_finite(self) -> bool:
        """Whether the weights that are trained are finite numbers; no step may be pending."""

    def barrier(self) -> None:
        """Return when all processes that run this loop have come here."""


class Synchronous:
    """All ranks compute each step together, so a step has its result when it is submitted."""

    pending = 0

    def __init__(
        self,
        replicas: Sequence[Replica],
        step: Step,
        evaluator: evaluate.Evaluator | None,
        examples: batching.BatchSource | None,
    ) -> None:
        """Take the replicas of this process, and the examples to evaluate on."""
        self._replicas = replicas
        self._step = step
        self._evaluator = evaluator
        self._examples = examples
        self._latest: dict[str, float] | None = None

    def reset(self) -> None:
        """Forget what the metrics have seen."""
        self._latest = None
        evaluate.reset_metrics(self._replicas)

    def submit(
        self, step: int, batch: batching.Batch, requests: frozenset[StepRequest]
    ) -> tuple[Sequence[StepResult], frozenset[StepRequest]]:
        """Compute the step."""
        result = self._step(step, batch, requests)
        self._latest = result.metrics
        return [result], result.requests

    def drain(self) -> Sequence[StepResult]:
        """Nothing is ever pending."""
        return []

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks: those that the last step has given, if it has."""
        return self.reduce_metrics() if self._latest is None else self._latest

    def reduce_metrics(self) -> dict[str, float]:
        """Sum the metrics over all ranks."""
        return self._report.metrics()

    @functools.cached_property
    def _report(self) -> evaluate.MetricReduction:
        return evaluate.MetricReduction(self._replicas)

    def weights_are_finite(self) -> bool:
        """Whether the weights that are trained are finite, the same on every process."""
        return self._finiteness()

    @functools.cached_property
    def _finiteness(self) -> Callable[[], bool]:
        return state.finiteness(self._replicas[0])

    def barrier(self) -> None:
        """Return when every rank has come here."""
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
        """Returns when all processes have come to it; absent before `prepare` sets it.

        The template's: if all processes end alike, none leaves before all have come.
        """

    @abc.abstractmethod
    def connect(self) -> AbstractContextManager[None]:
        """Reach the other processes, until the body ends."""

    def watch_peers(self) -> AbstractContextManager[None]:
        """End this process if one that it needs is lost, until the body ends."""
        peers = cluster.watched(self.context.settings.cluster)
        return cluster.watching(peers, self.context.give_up)

    @abc.abstractmethod
    def prepare(self) -> setup.EngineSetup:
        """Build what is trained, load the data and restore the newest checkpoint."""

    @abc.abstractmethod
    def build_engine(self, engine_setup: setup.EngineSetup) -> Engine:
        """Build the engine that trains what is prepared."""

    @abc.abstractmethod
    def describe(self, total: int | None) -> Iterable[str]:
        """Lines for people on what is prepared, from the number of steps where that is known."""
