"""Shows the progress of several runs, those of a comparison or a rehearsal."""

import time
import types
from collections.abc import Callable, Sequence

from rich import console as rich_console
from rich import progress as rich_progress

from tfparallel.backends.local import watcher
from tfparallel.compare import machine_load, measure, trial_records
from tfparallel.terminal import display
from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision

_LINE_SECONDS = 20.0
"""Between two lines about a run, where no bar is shown."""


class Screen:
    """A `watcher.Watcher` over many runs: a bar on a terminal, else a line for each run.

    What replicas write stays in their logs; warnings are shown.
    """

    def __init__(self, total: int, clock: Callable[[], float] = time.monotonic) -> None:
        """Args: total: how many runs there are; clock: in seconds."""
        _, self._err = display.consoles()
        self._clock, self._printed_at = clock, 0.0
        self._total = total
        self._number = 0
        self._bar = progress_bar(self._err)
        self._task = self._bar.add_task("", total=float(total), details="")
        self.what = ""
        """The current run."""
        self.processes = 0
        """How many it has."""

    def __enter__(self) -> "Screen":
        self._bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self._bar.stop()

    def begin(self, number: int, what: str) -> None:
        """A run begins."""
        self._number, self.what = number, what
        self._bar.update(
            self._task, completed=number - 1.0, description=self._title, details="starting"
        )
        self._printed_at = self._clock()
        if not self._err.is_terminal:
            self._print(f"{self._title}: begins")

    def end(self, run: trial_records.TrialRun) -> None:
        """It has ended well."""
        if run.others is not None and run.others > machine_load.BUSY:
            self._print(
                f"warning: other programs used {run.others:.0%} of this machine's CPU time: do not"
                " trust the times of this run"
            )
        speed = measure.speed(run)
        shown = "" if speed is None else f"  {speed:,.0f} examples/s"
        loss = f"  loss {run.epochs[-1].loss:.4g}"
        self._print(f"{self._title}  {run.seconds:.1f} s{shown}{loss}")
        self._bar.update(self._task, completed=float(self._number))

    def placed(self, placements: Sequence[watcher.Placement]) -> None:
        """The replicas of a run have their addresses."""
        self.processes = len(placements)

    def line(self, replica: str, text: str) -> None:
        """Lines of replicas are in their logs."""

    def event(self, event: decision.JobEvent) -> None:
        """Show warnings."""
        if event.type is decision.EventType.WARNING:
            self._print(f"{self.what}: {event.reason}: {event.message}")

    def progress(self, progress: job_status.ProgressStatus) -> None:
        """Show how far a run has come."""
        share = (progress.percent or 0) / 100
        total = "" if progress.total_steps is None else f"/{progress.total_steps}"
        details = f"step {progress.step}{total}"
        self._bar.update(self._task, completed=self._number - 1 + share, details=details)
        now = self._clock()
        if not self._err.is_terminal and now - self._printed_at >= _LINE_SECONDS:
            self._printed_at = now
            self._print(f"{self._title}: {details}")

    def split(self, placement: job_status.PlacementStatus) -> None:
        """Models are whole in sync and async."""

    def stopping(self) -> None:
        """Say that the processes are asked to end."""
        self._print("stopping; interrupt again to end every process at once")

    @property
    def _title(self) -> str:
        return f"run {self._number} of {self._total}: {self.what}"

    def _print(self, text: str) -> None:
        display.print_line(self._err, text)


def progress_bar(console: rich_console.Console) -> rich_progress.Progress:
    """Return a bar that has room for a run's name and its steps in 80 columns."""
    return rich_progress.Progress(
        rich_progress.TextColumn("{task.description}"),
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TextColumn("{task.fields[details]}"),
        rich_progress.TimeElapsedColumn(),
        console=console,
        expand=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
        disable=not console.is_terminal,
    )
