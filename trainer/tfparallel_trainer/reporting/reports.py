"""Tells how training goes: a line for people, records, and progress for the operator."""

import collections
import dataclasses
import os
import pathlib
import time
from collections.abc import Callable, Mapping
from typing import Any

from tfparallel_trainer.contract import limits, outputs, progress, verification
from tfparallel_trainer.reporting import console, input_wait, records, run_seconds, stragglers
from tfparallel_trainer.reporting import progress_pusher as pushing

_STATM = pathlib.Path("/proc/self/statm")

INTERVAL_SECONDS = 1.0
"""Shortest time between two reports during an epoch."""

_SURE_STEPS, _SURE_SECONDS = 10, 10.0
"""From so many steps, or from steps of so long, follows a time to go."""


class Tally:
    """Running means of the loss over the examples of an epoch, as Keras' fit shows them."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._examples = 0

    def add(self, values: dict[str, float], examples: int) -> None:
        """Take in the loss of a step."""
        for name, value in values.items():
            self._sums[name] = self._sums.get(name, 0.0) + value * examples
        self._examples += examples

    def means(self) -> dict[str, float]:
        """The means so far; empty before the first step."""
        return {name: total / self._examples for name, total in self._sums.items()}


@dataclasses.dataclass
class Reporter:
    """The chief's outlets; other processes keep time and stay silent."""

    out: console.Console
    written: records.RunRecords | None
    pusher: pushing.Pusher
    other_metrics: Callable[[], dict[str, float]] = dict
    """Gives metrics that another process has computed meanwhile."""
    _: dataclasses.KW_ONLY
    chief: bool
    lines: bool = True
    """Whether there are lines for people besides warnings."""
    start: Callable[[], Mapping[str, Any]] = dict
    """Gives facts about the start of this process, for the record of its first step."""
    wait: input_wait.Wait = dataclasses.field(default_factory=input_wait.Wait)
    """How long this process waits for its input."""
    times: run_seconds.RunTimes = dataclasses.field(default_factory=run_seconds.RunTimes)
    """Where the time of this process goes."""
    paces: stragglers.PaceComparison = dataclasses.field(default_factory=stragglers.PaceComparison)
    """Which replica stays slower than the others."""
    placement: Callable[[], progress.Placement | None] = lambda: None
    """Where the parts of the model are, as reports tell it; none where it is whole."""
    step_log: records.StepLog | None = None
    epochs: int | None = None
    """How many the job trains for, where it says so."""

    def __post_init__(self) -> None:
        self.metrics: dict[str, float] = {}
        """The latest loss and metrics; those of the evaluation begin with val_."""
        self.verified_steps: verification.Verification | None = None
        """What all checks of this attempt have compared with one process."""
        self._last = self._timed_from = self._counted_from = time.monotonic()
        self._paced = collections.deque([(0, self._last)])
        """Steps that were timed, and when, of reports of the newer half of them."""
        self._examples = 0
        self._timed_steps = -1
        self._rate: float | None = None
        self._staleness: collections.Counter[int] = collections.Counter()
        self._shown_step = -1
        """The step of the last line: at the end of an epoch it may have had one already."""

    @property
    def due(self) -> bool:
        """Whether it is time for the chief to report."""
        return self.chief and time.monotonic() - self._last >= INTERVAL_SECONDS

    @property
    def compares(self) -> bool:
        """Whether it is time for the chief to compare the replicas."""
        return self.chief and self.paces.is_due

    def starts(self, step: int) -> None:
        """Report before a step that may end the process that the model does not fit its devices."""
        placement = self.placement()
        if placement is not None and placement.exceeded_memory is not None:
            self.pusher.put(
                progress.Report(
                    step=min(step, limits.MAX_COUNT), before_first_step=True, placement=placement
                )
            )

    def epoch_begins(self) -> None:
        """Note in the step log that an epoch begins, or is resumed after a restart."""
        if self.step_log is not None:
            self.step_log.write(outputs.StepEvent.EPOCH)

    def stepped(self, step: int, examples: int, loss: float, staleness: int | None = None) -> None:
        """Count a step that is made."""
        if self.step_log is not None:
            facts = {} if staleness is None else {"staleness": staleness}
            number = outputs.number(loss)
            self.step_log.write(
                outputs.StepEvent.STEP, step=step, examples=examples, loss=number, **facts
            )
        if staleness is not None:
            self._staleness[staleness] += 1
        self._timed_steps += 1
        self.times.stepped(step, self.wait.seconds)
        if self._timed_steps == 0:  # the first step is mostly tracing: neither pace nor rate
            self._timed_from = self._counted_from = time.monotonic()
            self._paced = collections.deque([(0, self._timed_from)])
            self.event(outputs.TrainEvent.FIRST_STEP, step, **self.start())
        else:
            self._examples += examples

    def verified(self, check: verification.Check) -> None:
        """Report how near a step is to one process.

        People read of the first check, and of those that compare less or more than the one before.
        """
        earlier = self.verified_steps
        self.verified_steps = verification.Verification.with_check(earlier, check)
        is_news = earlier is None or earlier.omitted != self.verified_steps.omitted
        if is_news and self.chief and self.lines:
            self.out.say(check.sentence)
        differences = {
            name.value: difference.value for name, difference in check.differences.items()
        }
        self.event(
            outputs.TrainEvent.VERIFIED,
            check.step,
            differences=differences,
            omitted=[*check.omitted],
        )

    def compare(self, efforts: Mapping[str, stragglers.Effort]) -> None:
        """Take in what each replica has spent on its steps; the next report names a straggler."""
        news = self.paces.add(efforts) if self.chief else None
        if news is not None:
            self.out.say(news)

    def train(
        self,
        values: dict[str, float],
        step: int,
        total: int | None,
        epoch: int,
        *,
        has_ended: bool = False,
    ) -> None:
        """Report training: `values` are means over the epoch so far, `epoch` those completed.

        Lines for people count the current epoch, or the one that just ended, from 1, as Keras does.
        """
        now = time.monotonic()
        seconds = max(now - self._counted_from, 1e-9)
        rate = self._examples / seconds if self._examples else None
        self._last, self._counted_from, self._examples = now, now, 0
        self.metrics.update(values)
        waited = self.wait.recent()
        if (warning := self.wait.warning()) is not None:
            self.out.say(f"warning: {warning}")
        if not self.chief:
            return
        of_total = f"/{total}" if total else ""
        of_epochs = f"/{self.epochs}" if self.epochs else ""
        speed = "" if rate is None else f"{progress.format_number(rate)} examples/s  "
        self._note_pace()
        if self.lines and step != self._shown_step:
            self._shown_step = step
            left = self._time_left(step, total)
            eta = "" if left is None else f"  ETA {left}"
            self.out.say(
                f"step {step}{of_total}  epoch {epoch + (not has_ended)}{of_epochs}  "
                f"{console.metrics(values)}  {speed}input wait {waited.share:.0%}{eta}"
            )
        facts: dict[str, Any] = {"epoch": epoch}
        if _STATM.exists():
            facts["memoryBytes"] = int(_STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        if self.paces.straggler is not None:
            facts["straggler"] = self.paces.straggler
        if self._staleness:
            facts["staleness"] = dict(self._staleness)
            self._staleness.clear()
        if rate is not None:
            facts["examplesPerSecond"] = round(rate, 3)
            self._rate = rate
        if self.written is not None:
            shown = {**values, "input_wait": waited.share}
            self.written.metrics(outputs.TrainEvent.TRAIN, step, shown, **facts)
        self.metrics.update(self.other_metrics())
        self.pusher.put(self._progress(step, total, epoch, waited))

    def evaluation(
        self, values: dict[str, float], step: int, total: int | None, epoch: int
    ) -> None:
        """Report an evaluation; it does not count as training time, and the last rate stays."""
        if self.step_log is not None:
            numbers = {name: outputs.number(value) for name, value in values.items()}
            self.step_log.write(outputs.StepEvent.EVALUATION, metrics=numbers)
        self.metrics.update({f"val_{name}": value for name, value in values.items()})
        self._last = self._counted_from = time.monotonic()
        if not self.chief:
            return
        if self.lines:
            self.out.say(f"step {step}  evaluation  {console.metrics(values)}")
        if self.written is not None:
            self.written.metrics(outputs.TrainEvent.EVALUATION, step, values, epoch=epoch)
        self.pusher.put(self._progress(step, total, epoch))

    def evaluated(self, step: int, epoch: int) -> None:
        """Report at the end of training what another process has found; it has its own records."""
        self.metrics.update(self.other_metrics())
        self.pusher.put(self._progress(step, step, epoch))

    def left_out(self, step: int, why: str, *, first: bool) -> None:
        """Report a step whose update was left out; print a line for the first of an epoch only."""
        self.event(outputs.TrainEvent.LEFT_OUT, step, reason=why)
        if self.chief and first:
            self.out.say(
                f"warning: in step {step} {why}: its update is left out; more of this epoch are "
                f"only told in {outputs.TRAIN_LOG}"
            )

    def note(self, sentence: str) -> None:
        """Tell people something about the run."""
        if self.chief and self.lines:
            self.out.say(sentence)

    def event(self, kind: str, step: int, **facts: Any) -> None:
        """Record that something happened, such as a checkpoint, and facts about it."""
        if self.written is not None:
            self.written.event(kind, step, **facts)

    def flush(self) -> None:
        """Let others read what is recorded, and what else the output folder holds."""
        if self.written is not None:
            self.written.flush()

    def _progress(
        self, step: int, total: int | None, epoch: int, waited: input_wait.StepTimes | None = None
    ) -> progress.Report:
        """Build a report within the limits, which would refuse it otherwise."""
        if total is not None and total > limits.MAX_COUNT:
            total = None  # Nobody waits for its end.
        return progress.Report(
            step=min(step, limits.MAX_COUNT),
            total_steps=total,
            epoch=min(epoch, limits.MAX_COUNT),
            percent=None if total is None else min(100, 100 * step // total),
            examples_per_second=self._rate and progress.format_number(self._rate),
            input_wait=f"{waited.share:.2f}" if waited is not None and waited.steps else None,
            straggler=self.paces.straggler,
            metrics={
                limits.printable(name, limits.MAX_NAME_LETTERS): progress.format_number(value)
                for name, value in [*self.metrics.items()][: limits.MAX_METRICS]
            },
            eta=self._time_left(step, total),
            seconds=self.times.divide(self.wait.seconds),
            placement=self.placement(),
            verification=self.verified_steps,
        )

    def _note_pace(self) -> None:
        """Note how many steps were timed by now, and forget what was of the older half of them."""
        self._paced.append((self._timed_steps, time.monotonic()))
        while len(self._paced) > 1 and 2 * self._paced[1][0] <= self._timed_steps:
            self._paced.popleft()

    def _time_left(self, step: int, total: int | None) -> str | None:
        """The time to go at the pace of the newer half of the steps; None: unknown, or none is.

        The first steps trace, are verified, and read files that no cache has yet.
        """
        (first, began), now = self._paced[0], time.monotonic()
        is_sure = self._timed_steps >= _SURE_STEPS or now - self._timed_from >= _SURE_SECONDS
        if total is None or step >= total or self._timed_steps <= first or not is_sure:
            return None
        pace = (now - began) / (self._timed_steps - first)
        return progress.format_duration(pace * (total - step))
