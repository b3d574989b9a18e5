"""The outer loop: epochs and steps, checkpoints, evaluation and reports, in one order everywhere.

Every process runs the same loop and decides alike: from counts, and from flags that are added up in
each step. Nothing here reads a clock or a signal and acts on it alone.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from tfparallel_trainer import errors, reporting, stall, termination
from tfparallel_trainer.checkpoint import files, schedule
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import feed, order
from tfparallel_trainer.step import evaluate, finite, replica, train


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the loop works with."""

    spec: job_file.TrainerSpec
    replicas: Sequence[replica.Replica]
    training: feed.Feed
    evaluation: feed.Feed | None
    step: train.TrainStep
    evaluator: evaluate.Evaluation | None
    report: evaluate.Report
    reporter: reporting.Reporter
    termination: termination.Termination
    watch: stall.Watch
    schedule: schedule.Schedule
    save: Callable[[files.Position], None]
    """Saves a checkpoint, where one is configured and this process writes it."""


class Training:
    """Trains from a position to the end."""

    def __init__(self, parts: Parts, start: files.Position) -> None:
        self._parts = parts
        self._step = start.step
        self._epoch = start.epoch
        self._example = start.example
        self._length = parts.training.examples
        self._evaluated_at = -1
        self._saved_at = start.step
        self._tally = reporting.Tally()
        self._weights = finite.Weights(parts.replicas[0])
        self._left_out = False

    @property
    def position(self) -> files.Position:
        """Where training stands."""
        return files.Position(step=self._step, epoch=self._epoch, example=self._example)

    @property
    def total_steps(self) -> int | None:
        """Steps to make in all, where that is known."""
        spec = self._parts.spec
        if spec.steps is not None or spec.epochs is None or self._length is None:
            return spec.steps
        if self._example == 0 and self._epoch == spec.epochs:
            return self._step
        done = order.steps(self._example, spec.global_batch_size)
        per_epoch = order.steps(self._length, spec.global_batch_size)
        return self._step - done + per_epoch * (spec.epochs - self._epoch)

    def run(self) -> None:
        """Train to the end.

        Raises:
            PreemptedError: a process was asked to end; a checkpoint is saved where configured.
            NonFiniteError: loss, gradients or weights are not finite; nothing more is saved.
        """
        while not self._finished():
            self._run_epoch()
        self._evaluate()

    def _finished(self) -> bool:
        spec = self._parts.spec
        if spec.steps is not None:
            return self._step >= spec.steps
        return spec.epochs is not None and self._epoch >= spec.epochs

    def _run_epoch(self) -> None:
        evaluate.reset_metrics(self._parts.replicas)
        self._tally = reporting.Tally()
        self._left_out = False
        parts = self._parts
        for batch in parts.training.epoch(self._epoch, self._example):
            flags = self._make_step(batch)
            if train.Flag.STOP in flags:
                self._stop()
            if self._finished() and self._example != self._length:
                self._save()
                self._report()
                return
            if train.Flag.SAVE in flags or parts.schedule.due_after(self._step):
                self._save()
            if train.Flag.REPORT in flags:
                self._report()
        self._end_epoch()

    def _make_step(self, batch: feed.Batch) -> frozenset[train.Flag]:
        parts = self._parts
        asked = {
            train.Flag.STOP: parts.termination.asked,
            train.Flag.REPORT: parts.reporter.due,
            train.Flag.SAVE: parts.schedule.due_by_clock,
        }
        outcome = parts.step(
            self._step, batch, frozenset(flag for flag, wanted in asked.items() if wanted)
        )
        self._step += 1
        self._example += batch.examples
        if outcome.finite:
            self._tally.add({"loss": outcome.loss, **outcome.terms}, batch.examples)
        else:
            self._leave_out(outcome.loss)
        parts.reporter.stepped(batch.examples)
        parts.watch.moved(f"step {self._step}")
        return outcome.flags

    def _leave_out(self, loss: float) -> None:
        """Count a step that was not finite, or end training because of it."""
        what = "a gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
        if self._parts.spec.on_non_finite_loss is job_file.OnNonFiniteLoss.STOP:
            raise errors.NonFiniteError(
                f"In step {self._step} {what}: training stopped, {self._last_good()} Lower the "
                "learning rate, clip gradients or look for missing values in the data; "
                "trainer.onNonFiniteLoss: Continue would leave such steps out."
            )
        self._parts.reporter.left_out(self._step, what, first=not self._left_out)
        self._left_out = True

    def _last_good(self) -> str:
        if self._parts.spec.checkpoint is None or self._saved_at == 0:
            return "and no checkpoint was saved."
        return f"and the last good checkpoint is that of step {self._saved_at}."

    def _end_epoch(self) -> None:
        if self._example == 0:
            raise errors.UserCodeError(
                f"training_data gives no examples in epoch {self._epoch}: let it give some in each."
            )
        self._length = self._example
        self._epoch, self._example = self._epoch + 1, 0
        self._save()
        self._report()
        self._evaluate()

    def _save(self) -> None:
        if self._saved_at != self._step:
            if not self._weights.finite():
                raise errors.NonFiniteError(
                    f"After step {self._step} a weight is not finite: training stopped, "
                    f"{self._last_good()} Lower the learning rate or clip gradients."
                )
            self._parts.save(self.position)
            self._parts.schedule.saved()
            self._parts.watch.moved(f"the checkpoint of step {self._step}")
            self._saved_at = self._step

    def _report(self) -> None:
        means = self._tally.means()
        if not means:  # resumed where an epoch ends
            return
        parts = self._parts
        found, _ = parts.report(np.zeros((2, len(parts.replicas[0].terms))))
        parts.reporter.train({**means, **found}, self._step, self.total_steps, self._epoch)

    def _evaluate(self) -> None:
        parts = self._parts
        if parts.evaluation is None or parts.evaluator is None or self._evaluated_at == self._step:
            return
        values = parts.evaluator.run(self._watched(parts.evaluation.epoch(0, 0)))
        self._evaluated_at = self._step
        parts.reporter.evaluation(values, self._step, self.total_steps, self._epoch)

    def _watched(self, batches: Iterator[feed.Batch]) -> Iterator[feed.Batch]:
        for number, batch in enumerate(batches, 1):
            yield batch
            self._parts.watch.moved(f"batch {number} of the evaluation after step {self._step}")

    def _stop(self) -> None:
        self._save()
        raise errors.PreemptedError(
            f"A replica was asked to end: training stopped after step {self._step}"
            + (
                ", which is saved."
                if self._parts.spec.checkpoint
                else "; without trainer.checkpoint the next run begins at step 0."
            )
        )
