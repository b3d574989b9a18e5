"""The training loop: epochs, steps, checkpoints, evaluation and reports, in one order everywhere.

Every process runs the same loop and decides alike: from counts, and from requests that each step
sums over all processes. No process acts on its clock or a signal alone. An engine may have steps
pending. Counts are of submitted steps, and the loop saves and evaluates only when none is pending.
A checkpoint is copied at its step and written while training continues (`checkpoint_writer`).
Between checkpoints the state is copied in memory, if an agent keeps it (`state_copier`).
"""

import contextlib
import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Iterator, Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.contract import job_file
from tfparallel_trainer.data import batch_division, feed, order
from tfparallel_trainer.engines.engine import Engine, StepRequest, StepResult
from tfparallel_trainer.lifecycle import stall
from tfparallel_trainer.lifecycle.termination import Termination
from tfparallel_trainer.loop import execution_length
from tfparallel_trainer.loop.checkpoint_writer import CheckpointWriter
from tfparallel_trainer.loop.observer import Observer
from tfparallel_trainer.loop.state_copier import StateCopier
from tfparallel_trainer.reporting import reports


class CheckpointSchedule:
    """When a checkpoint is due: after so many steps, so many minutes, or whichever comes first.

    Steps are counted by every process; only the chief looks at a clock. Without a spec none is due.
    """

    def __init__(
        self,
        spec: job_file.Checkpoint | None,
        is_chief: bool,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._steps = None if spec is None else spec.steps_between
        minutes = spec.every_minutes if spec is not None and is_chief else None
        self._seconds = None if minutes is None else 60.0 * minutes
        self._clock = clock
        self._last = clock()

    @property
    def due_by_clock(self) -> bool:
        """Whether the chief asks for a checkpoint; others learn of it with the next step."""
        return self._seconds is not None and self._clock() - self._last >= self._seconds

    def due_after(self, step: int) -> bool:
        """Whether the number of a step asks for a checkpoint; the same on every process."""
        return self._steps is not None and step % self._steps == 0

    def steps_until_due(self, step: int) -> float:
        """How many steps after this one end with one that asks for a checkpoint."""
        return math.inf if self._steps is None else self._steps - step % self._steps

    def saved(self) -> None:
        """A checkpoint was saved, for whatever reason: minutes count from now."""
        self._last = self._clock()


_Requests = frozenset[StepRequest]
_Results = Sequence[StepResult]


@dataclasses.dataclass(kw_only=True)
class Training:
    """Trains from a position to the end."""

    spec: job_file.TrainerSpec
    examples: feed.Feed
    engine: Engine
    reporter: reports.Reporter
    termination: Termination
    watch: stall.Watch
    schedule: CheckpointSchedule
    save: Callable[[files.Position], None]
    """Copies the state and begins to write it, where a checkpoint is configured and this process
    writes it."""
    writer: CheckpointWriter = dataclasses.field(default_factory=CheckpointWriter)
    """Where the write continues."""
    copier: StateCopier = dataclasses.field(default_factory=StateCopier)
    observer: Observer
    start: files.Position
    saved_step: int = 0
    """Step of the newest checkpoint; 0 without one."""
    until_first_step: contextlib.ExitStack = dataclasses.field(default_factory=contextlib.ExitStack)
    """What lasts until the first step is made and compared."""

    def __post_init__(self) -> None:
        self.examples.restore(feed.FeedPosition(self.start.epoch, self.start.example))
        self._step, self._saved_at = self.start.step, self.saved_step
        self._tally = reports.Tally()
        self._batches = self._changes = 0
        self._counted_steps: int | None = None
        """Steps of the last epoch that has ended: data in batches decides about their number."""
        self._ended_epoch = self._left_out = False
        batch_bytes = execution_length.count_bytes(self.examples.spec, self.spec.global_batch_size)
        self._executions = execution_length.ExecutionLength(
            self.spec.steps_per_execution, batch_bytes
        )

    @property
    def position(self) -> files.Position:
        """Where training stands once no step is pending."""
        epoch, example = self._place.epoch, self._place.example
        memory = self.observer.memory
        return files.Position(step=self._step, epoch=epoch, example=example, observer=memory)

    @property
    def total_steps(self) -> int | None:
        """Steps to make in all, where that is known."""
        spec, state, per_epoch = self.spec, self._place, self._epoch_steps
        if spec.steps is not None or spec.epochs is None or per_epoch is None:
            return spec.steps
        done = self._batches if state.example else 0
        return self._step - done + per_epoch * (spec.epochs - state.epoch)

    @property
    def _epoch_steps(self) -> int | None:
        """Steps in an epoch, where the data says so or an epoch has ended."""
        length = self.examples.examples
        if self._counted_steps is not None or length is None:
            return self._counted_steps
        return order.steps(length, self.spec.global_batch_size)

    def run(self) -> None:
        """Train to the end.

        Raises:
            PreemptedError: a process was asked to end; a checkpoint is saved where configured.
            NonFiniteError: loss, gradients or weights are not finite; nothing more is saved.
        """
        self.watch.moved("training began")
        self.until_first_step.enter_context(self.watch.first_step())
        self.observer.training_begins()
        while not self._finished():
            self._run_epoch()
        self._save()  # if it resumed after the last step, which no checkpoint has
        if not self._ended_epoch and self.observer.evaluates_after(self._place.epoch - 1):
            self._evaluate()
        self.writer.wait()
        self.copier.wait()
        self.observer.training_ends()

    @property
    def _place(self) -> feed.FeedPosition:
        """Where the data stands."""
        return self.examples.state

    def _finished(self) -> bool:
        if self.observer.stop:
            return True
        if self.spec.steps is not None:
            return self._step >= self.spec.steps
        return self.spec.epochs is not None and self._place.epoch >= self.spec.epochs

    def _run_epoch(self) -> None:
        self.engine.reset()
        self.reporter.epoch_begins()
        self._tally = reports.Tally()
        self._batches = order.steps(self._place.example, self.spec.global_batch_size)
        self._ended_epoch = self._left_out = False
        self.observer.epoch_begins(self._place.epoch)
        with contextlib.closing(self.examples.remaining()) as batches:
            whole = self._go_through(batches)
        if whole:
            self._end_epoch()

    def _go_through(self, batches: Iterator[batch_division.Batch]) -> bool:
        """Make a step of each batch; whether the epoch ended before training did."""
        while execution := self._next_batches(batches):
            requests = self._observed_steps(execution)
            if StepRequest.FAILED in requests:
                self._fail()
            if StepRequest.STOP in requests:
                self._stop()
            if self.observer.stop:
                break
            if self._finished() and self._batches != self._epoch_steps:
                self._save()
                self._report()
                return False
            if StepRequest.SAVE in requests or self.schedule.due_after(self._step):
                self._save()
            elif StepRequest.COPY in requests:
                self._copy()
            if StepRequest.COMPARE in requests:
                self.reporter.compare(self.engine.measure_efforts())
            if StepRequest.REPORT in requests:
                self._lengthen_executions()
                self._report()
        return True

    def _lengthen_executions(self) -> None:
        """Let one call compute several steps from here on, if many short ones remain."""
        steps = self._executions.choose(self._step, self.total_steps)
        if steps == self._executions.most or self.observer.each_batch:
            return
        self.until_first_step.enter_context(self.watch.first_step())  # a graph is built, as there
        if self.engine.prepare_executions():
            self._executions.most = steps
            self.reporter.note(
                f"steps are short: from step {self._step + 1} on, one call of TensorFlow computes "
                f"up to {steps}. Set trainer.stepsPerExecution to 1 for single steps; the weights "
                "are the same"
            )

    def _next_batches(self, batches: Iterator[batch_division.Batch]) -> list[batch_division.Batch]:
        """Those of the next execution: nothing but steps is due before its end."""
        most: float = 1
        if self._executions.most > 1 and self.engine.may_repeat and not self.observer.each_batch:
            most = min(
                self._executions.most,
                self.schedule.steps_until_due(self._step),
                math.inf if self.spec.steps is None else self.spec.steps - self._step,
            )
        self.examples.expect(int(most))
        return list(itertools.islice(batches, int(most)))

    def _observed_steps(self, batches: Sequence[batch_division.Batch]) -> _Requests:
        if not self.observer.each_batch:
            return self._make_steps(batches)
        self.observer.batch_begins(self._batches)
        requests = self._make_steps(batches)
        if not self._tally.means():  # of workers' steps none of this epoch has come back
            self._drain()
        self.observer.batch_ends(self._batches - 1, {"loss": math.nan, **self._values()})
        return requests

    def _make_steps(self, batches: Sequence[batch_division.Batch]) -> _Requests:
        is_requested = {
            StepRequest.STOP: self.termination.asked,
            StepRequest.REPORT: self.reporter.due,
            StepRequest.SAVE: self.schedule.due_by_clock,
            StepRequest.METRICS: self.observer.each_batch,
            StepRequest.CHANGED: self.observer.changes > self._changes,
            StepRequest.FAILED: self.writer.error is not None,
            StepRequest.COPY: self.copier.due,
            StepRequest.COMPARE: self.reporter.compares,
        }
        self._changes = self.observer.changes
        own_requests = frozenset(request for request, is_set in is_requested.items() if is_set)
        completed = self._step - self.engine.pending
        results, requests = self.engine.submit(self._step, batches, own_requests)
        self._step += len(batches)
        self._batches += len(batches)
        self._count(results, completed)
        return requests

    def _drain(self) -> None:
        completed = self._step - self.engine.pending
        self._count(self.engine.drain(), completed)

    def _count(self, results: _Results, completed: int) -> None:
        """Count steps, of which so many were completed before."""
        for step, result in enumerate(results, completed + 1):
            self.reporter.stepped(step, result.examples, result.loss, result.staleness)
            if result.check is not None:
                self.reporter.verified(result.check())
            self.until_first_step.close()
            if result.finite or self.observer.takes_non_finite:
                self._tally.add(result.losses, result.examples)
            else:
                self._leave_out(step, result.loss)
            self.watch.moved(f"step {step}")

    def _leave_out(self, step: int, loss: float) -> None:
        """Count a step that was not finite, or end training because of it."""
        what = "a gradient is not finite" if math.isfinite(loss) else f"the loss is {loss}"
        if self.spec.on_non_finite_loss is job_file.OnNonFiniteLoss.STOP:
            self.writer.wait()
            raise errors.NonFiniteError(
                f"In step {step} {what}: training stopped, {self._last_good()} Lower the "
                "learning rate, clip gradients or look for missing values in the data. "
                "trainer.onNonFiniteLoss: Continue would leave such steps out."
            ).on_every_process()
        self.reporter.left_out(step, what, first=not self._left_out)
        self._left_out = True

    def _last_good(self) -> str:
        if self.spec.checkpoint is None or self._saved_at == 0:
            return "and no checkpoint was saved."
        return f"and the last good checkpoint is that of step {self._saved_at}."

    def _end_epoch(self) -> None:
        ended = self._place.epoch
        if self._place.example == 0:
            raise errors.UserCodeError(
                f"The data to train on have no examples in epoch {ended + 1}, for which"
                f" context.epoch is {ended}: give some in each.",
                function="training_data",
            )
        self._drain()
        self._counted_steps = self._batches
        self.examples.end_epoch()
        self._ended_epoch = True
        if not self.observer.acts:
            self._save()
        logs = self._report()
        if self.observer.evaluates_after(ended):
            logs |= {f"val_{name}": value for name, value in self._evaluate().items()}
        self.observer.epoch_ends(ended, logs)
        self._save()

    def _save(self) -> None:
        if self._saved_at != self._step:
            self._drain()
            if not self.engine.weights_are_finite():
                if self.observer.takes_non_finite:
                    return
                self.writer.wait()
                raise errors.NonFiniteError(
                    f"After step {self._step} a weight is not finite: training stopped, "
                    f"{self._last_good()} Lower the learning rate or clip gradients."
                ).on_every_process()
            with self.termination.saving(), self.reporter.times.checkpointing():
                self.save(self.position)
                self.engine.barrier()  # nobody is short of time while another one waits or copies
            self.schedule.saved()
            self.copier.postpone()
            self.watch.moved(f"the checkpoint of step {self._step}")
            self._saved_at = self._step

    def _copy(self) -> None:
        """Copy the state in memory; a loss that is not finite ends training with the next step."""
        self._drain()
        with self.reporter.times.checkpointing(), self.copier.timed():
            self.copier.copy(self.position)
            self.engine.barrier()  # the cost is that of the slowest process

    def _values(self) -> dict[str, float]:
        """Loss and metrics of the epoch so far."""
        return {**self._tally.means(), **self.engine.metrics()}

    def _report(self) -> dict[str, float]:
        if not self._tally.means():  # resumed where an epoch ends
            return {}
        completed_steps = self._step - self.engine.pending
        values = self._values()
        self.reporter.train(
            values,
            completed_steps,
            self.total_steps,
            self._place.epoch,
            has_ended=self._ended_epoch,
        )
        self._executions.reported(self._step)
        self.observer.reported(self._batches, values)
        return values

    def _evaluate(self) -> dict[str, float]:
        self.observer.evaluation_begins()
        with self.reporter.times.evaluating(), self.watch.evaluation():
            values = self.engine.evaluate(self._watched)
        if values is None:
            return {}
        self.reporter.evaluation(values, self._step, self.total_steps, self._place.epoch)
        self.observer.evaluation_ends(values)
        return values

    def _watched(self, batches: Iterator[batch_division.Batch]) -> Iterator[batch_division.Batch]:
        for number, batch in enumerate(batches, 1):
            self.observer.evaluation_batch_begins(number - 1)
            yield batch
            self.observer.evaluation_batch_ends(number - 1)
            self.watch.moved(f"batch {number} of the evaluation after step {self._step}")

    def _stop(self) -> None:
        self.termination.allow_save()
        self._save()
        self.writer.wait()
        raise errors.PreemptedError(
            f"A replica was asked to end: training stopped after step {self._step}"
            + (
                ", which is saved."
                if self.spec.checkpoint
                else "; without trainer.checkpoint the next run begins at step 0."
            )
        ).on_every_process()

    def _fail(self) -> None:
        """End with the error of this process, or of another one that could not write."""
        self.writer.wait()
        raise errors.PeerLostError(
            "A checkpoint is not written, because another process could not do its part; its log "
            "says why. A new run resumes from the last good one."
        )
