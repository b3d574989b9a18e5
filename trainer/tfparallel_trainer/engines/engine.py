"""What the run and its outer loop ask of an engine, whether ranks make steps together or alone."""

import abc
import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.comms import cluster
from tfparallel_trainer.contract import progress, verification
from tfparallel_trainer.data import batching, fingerprints
from tfparallel_trainer.engines import setup
from tfparallel_trainer.objective import evaluate, independence, replica, state


class Flag(enum.IntEnum):
    """What any process may ask for in a step; all learn of it in the same step."""

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
    flags: frozenset[Flag] = frozenset()
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


REQUESTS = len(Flag) + fingerprints.SUMMANDS
"""How many numbers a process adds to the sum that a step makes over all of them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Computed:
    """What a step gives, as arrays."""

    loss: Any
    terms: Any
    """The loss of each output."""
    requests: Any
    """Summed over all processes."""
    finite: Any
    metrics: dict[str, float] | None = None
    """As in `StepResult`."""


class Step(abc.ABC):
    """Makes the steps of all ranks together, each a call; `compute` is the engine's."""

    def __init__(
        self, module: user.Module, replica: replica.Replica, parts: int, targets: Any = None
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

    def __call__(self, step: int, batch: batching.Batch, asked: frozenset[Flag]) -> StepResult:
        """Make the step of a number, from 0, on a batch; this process asks for these flags.

        If processes were given different examples, it is a UserCodeError.
        """
        part = next((part for part in batch.parts if part is not None), None)
        if not self._is_tried and part is not None:
            self._is_tried = True
            self.check(part)
        flags = (float(flag in asked) for flag in Flag)
        requests = [*flags, *fingerprints.summands(batch.fingerprint)]
        computed = self.compute(step, batch, requests, gives_metrics=Flag.METRICS in asked)
        sums = computed.requests
        if not fingerprints.alike(sums[len(Flag) :]):
            raise errors.UserCodeError(
                f"Some replicas get other examples than others, which shows in step {step + 1}: "
                "give the same in the same order everywhere. Sort lists of files, and let what is "
                "random follow from a seed: in the function training_data from context.seed and "
                "context.epoch, in a script from a seed that all replicas share.",
                function="training_data",
            ).on_every_process()
        check = None
        if self.referee is not None and computed.finite:
            check = self.referee(step + 1, batch, bool(sums[Flag.CHANGED] > 0))
        return StepResult(
            losses={"loss": float(computed.loss), **self._replica.by_output(computed.terms)},
            examples=batch.examples,
            finite=bool(computed.finite),
            flags=frozenset(flag for flag in Flag if sums[flag] > 0),
            metrics=computed.metrics,
            check=check,
        )

    @abc.abstractmethod
    def compute(
        self, step: int, batch: batching.Batch, requests: Sequence[float], *, gives_metrics: bool
    ) -> Computed:
        """Compute a step and apply its gradients.

        `requests` is what this process adds to the sum over all: flags, and the fingerprint of the
        batch. Metrics may be asked for, where the engine adds them up in steps.
        """

    def check(self, part: Any) -> None:
        """Refuse a model whose examples, of which these are some, depend on each other."""
        with user.guard(self.module.path, "computing the loss of some examples raised"):
            independence.check(self._replica, part, self._targets)


class Engine(Protocol):
    """Makes steps in any order; each batch that is given leads to one step."""

    @property
    def pending(self) -> int:
        """How many steps are given and not made yet."""

    def reset(self) -> None:
        """Forget what the metrics have seen."""

    def submit(
        self, step: int, batch: batching.Batch, asked: frozenset[Flag]
    ) -> tuple[Sequence[StepResult], frozenset[Flag]]:
        """Give the batch of a step: which steps are made since the last call, and all flags."""

    def drain(self) -> Sequence[StepResult]:
        """Return when no step is pending, with those that are made since the last call."""

    def metrics(self) -> dict[str, float]:
        """The metrics over what they have seen, and what else tells how training goes."""

    def evaluate(self, watched: Watched) -> dict[str, float] | None:
        """Loss and metrics over the examples to evaluate on; None without such examples."""

    def weights_are_finite(self) -> bool:
        """Whether the weights that are trained are finite numbers; no step may be pending."""

    def barrier(self) -> None:
        """Return when all processes that run this loop have come here."""


class Synchronous:
    """All ranks make each step together, so a step that is given is made."""

    pending = 0

    def __init__(
        self,
        replicas: Sequence[replica.Replica],
        step: Step,
        evaluator: evaluate.Evaluator | None,
        examples: batching.Source | None,
        report: Callable[[], dict[str, float]] | None = None,
        are_weights_finite: Callable[[], bool] | None = None,
        barrier: Callable[[], None] | None = None,
    ) -> None:
        """Take the replicas of this process, and the examples to evaluate on.

        The last three are the mesh's where absent: `report` gives metrics, `barrier` waits for all.
        """
        self._replicas = replicas
        self._step = step
        self._evaluator = evaluator
        self._examples = examples
        self._report = report or evaluate.Report(replicas).metrics
        self.weights_are_finite = are_weights_finite or state.finiteness(replicas[0])
        self.barrier = barrier or state.barrier(replicas)
        self._latest: dict[str, float] | None = None

    def reset(self) -> None:
        """Forget what the metrics have seen."""
        self._latest = None
        evaluate.reset_metrics(self._replicas)

    def submit(
        self, step: int, batch: batching.Batch, asked: frozenset[Flag]
    ) -> tuple[Sequence[StepResult], frozenset[Flag]]:
        """Make the step."""
        result = self._step(step, batch, asked)
        self._latest = result.metrics
        return [result], result.flags

    def drain(self) -> Sequence[StepResult]:
        """Nothing is ever pending."""
        return []

    def metrics(self) -> dict[str, float]:
        """The metrics over all ranks: those that the last step has given, if it has."""
        return self._report() if self._latest is None else self._latest

    def evaluate(self, watched: Watched) -> dict[str, float] | None:
        """Evaluate on all ranks."""
        if self._evaluator is None or self._examples is None:
            return None
        self._latest = None
        return self._evaluator.run(watched(self._examples.epoch(0, 0)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """What a run trains with."""

    ready: setup.Ready
    engine: Engine
    export: Callable[[files.Position], None] | None = None
    """Leaves the trained model, on all processes; absent: the first replica has all of it."""
    build_reach: Callable[[Sequence[Any]], Any] | None = None
    """Gives how far callbacks reach; absent: over replicas of the whole model."""
    placement: Callable[[], progress.Placement | None] = lambda: None
    steps_by_worker: dict[str, int] | None = None


class RunTemplate(abc.ABC):
    """The course of a run with one engine, in the order of its methods."""

    def __init__(self, context: setup.RunContext) -> None:
        self.context = context
        self.barrier: Callable[[], object] | None = None
        """Returns when all processes have come to it; absent before it is prepared."""

    @abc.abstractmethod
    def connected(self) -> AbstractContextManager[None]:
        """Reach the other processes, until the body ends."""

    def watched(self) -> AbstractContextManager[None]:
        """End this process when one that it needs is lost, until the body ends."""
        peers = cluster.watched(self.context.settings.cluster)
        return cluster.watching(peers, self.context.give_up)

    @abc.abstractmethod
    def prepared(self) -> Prepared:
        """Build what is trained, load the data and restore the newest checkpoint.

        The course's, once there is a barrier: if all end alike, nobody leaves before all have come.
        """

    @abc.abstractmethod
    def announcement(self, total: int | None) -> Iterable[str]:
        """Lines for people on what is prepared, from the number of steps where that is known."""
