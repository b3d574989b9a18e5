"""Shows a running job: the placement, the lines of replicas, the progress."""

import itertools
import os
import re
import signal
import time
import types
from collections.abc import Callable, Iterable, Iterator, Sequence

from rich import console as rich_console
from rich import progress as rich_progress
from rich import segment as rich_segment
from rich import table as rich_table
from rich import text as rich_text

from tfparallel import log_lines
from tfparallel.backends.local import watcher
from tfparallel.terminal import placement as split_placement
from tfparallel_operator.api import job_status
from tfparallel_operator.core import decision
from tfparallel_trainer.contract import plain_text

_COLOURS = ("cyan", "magenta", "green", "blue", "yellow", "bright_cyan", "bright_magenta")
_PLAIN_WIDTH = 160
"""Width of a table that goes to a file, unless COLUMNS says another."""

_PLAIN_SECONDS = 1.0
"""Shortest time between two lines of progress in a file."""

_ERROR = "error: "
"""Start of the line in which a replica says why it exits."""

_FRAME = '  File "'
"""Start of a frame of a traceback; lines that are indented further belong to it."""

_COMMAND, _END_OF_COMMAND = "\x1b]", "\x1b\\"
"""OSC and ST: between them are links, titles and the like."""

_REMEMBERED_ERRORS = 32
"""How many of the last errors of replicas the next ones and events are compared with."""


class _Console(rich_console.Console):
    """Shows control characters of others' text, in tables, lines and bars alike.

    It ends the run in order when the reader closes the pipe, such as `| head`.
    """

    def render(
        self,
        renderable: rich_console.RenderableType,
        options: rich_console.ConsoleOptions | None = None,
    ) -> Iterator[rich_segment.Segment]:
        """Yield the parts of what is printed; colors and moves of the cursor are rich's own."""
        segments = super().render(renderable, options)
        if isinstance(renderable, rich_table.Table) and not self.is_terminal:
            segments = _without_padding(segments)
        for text, style, control in segments:
            if control:
                yield rich_segment.Segment(text, style, control)
            else:
                # A link of a replica's line would bring its address to the terminal as it is.
                plain = style.update_link(None) if style and style.link else style
                yield rich_segment.Segment(plain_text.escape(text, keep="\n"), plain)

    def on_broken_pipe(self) -> None:
        """Discard further output, and exit as on SIGTERM."""
        self.quiet = True
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.file.fileno())
        os.close(nowhere)
        signal.raise_signal(signal.SIGTERM)


def _without_padding(segments: Iterable[rich_segment.Segment]) -> Iterator[rich_segment.Segment]:
    """Yield the parts of a table without the blanks that fill its lines up to the right."""
    for line in rich_segment.Segment.split_lines(segments):
        while line and not line[-1].text.strip() and not line[-1].control:
            line.pop()
        if line and not line[-1].control:
            line[-1] = rich_segment.Segment(line[-1].text.rstrip(), line[-1].style)
        yield from (*line, rich_segment.Segment.line())


def consoles() -> tuple[rich_console.Console, rich_console.Console]:
    """Return the consoles of standard output and standard error."""
    streams = []
    for is_error in (False, True):
        console = _Console(stderr=is_error, highlight=False, markup=False)
        if not console.is_terminal and "COLUMNS" not in os.environ:
            console.width = _PLAIN_WIDTH
        streams.append(console)
    return streams[0], streams[1]


def print_line(console: rich_console.Console, text: str | rich_text.Text) -> None:
    """Print a line: on a terminal broken between words, in a file whole.

    A line with a longer word, such as a path, is left to the terminal, so that you can copy it.
    """
    has_long_word = any(len(word) > console.width for word in str(text).split())
    console.print(text, soft_wrap=has_long_word or not console.is_terminal)


def parse_colors(line: str) -> rich_text.Text:
    """Return a replica's line with its colors, in time like its length.

    At each command of a terminal that does not end, rich would read all of the line.
    """
    complete, end, tail = line.rpartition(_END_OF_COMMAND)
    *parts, last = tail.split(_COMMAND)
    # An escape before a backslash would be an end of its own.
    parts = [part.rstrip(_COMMAND[0]) for part in parts]
    shown = plain_text.escape(_COMMAND).join([*parts, last])
    return rich_text.Text.from_ansi(complete + end + shown)


class Display:
    """Shows a run: a bar below the lines on a terminal, else plain lines.

    Placement and lines go to standard output, progress and notes to standard error; on a terminal
    everything goes through the bar's console, which keeps the bar below it. The shipped trainer
    writes lines on its progress: without a bar these do, as long as they come.
    """

    def __init__(
        self,
        notes: Sequence[str],
        clock: Callable[[], float] = time.monotonic,
        *,
        is_of_trainer: bool = False,
    ) -> None:
        self._out, self._err = consoles()
        self._share_file = _share_file(self._out, self._err)
        self._clock = clock
        self._next_line = clock()
        self._is_of_trainer = is_of_trainer
        self._has_new_lines = False
        """Whether replicas have written since the last report of progress."""
        self._shown_step = -1
        """The last step of which the trainer itself has said how far it has come."""
        self._bar = progress_bar(self._err) if self._err.is_terminal else None
        self._task: rich_progress.TaskID | None = None
        self._lines = self._err if self._bar and self._out.is_terminal else self._out
        self._colours: dict[str, str] = {}
        self._next_colour = itertools.cycle(_COLOURS)
        self._notes = notes
        self._messages: set[str] = set()
        self._errors: dict[str, str] = {}
        """The replica that each error was first shown of."""
        self._tracebacks: dict[str, list[rich_text.Text]] = {}
        """Lines that wait for the error of their replica."""

    def __enter__(self) -> "Display":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: types.TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the bar; lines can still be shown."""
        for replica in [*self._tracebacks]:
            self._print_traceback(replica)
        if self._bar is not None:
            self._bar.stop()

    def placed(self, placements: Sequence[watcher.Placement]) -> None:
        """Show where each replica runs."""
        table = rich_table.Table("Replica", "Address", "Command")
        for placement in placements:
            table.add_row(
                rich_text.Text(placement.replica, self._colour(placement.replica)),
                placement.address,
                rich_text.Text(placement.command),
            )
        self._lines.print(table)
        for note in self._notes:
            print_line(self._err, f"note: {note}")

    def line(self, replica: str, text: str) -> None:
        """Show a line that a replica wrote, but not the two that TensorFlow always begins with.

        The shipped trainer has named itself already. An error that another replica had first is
        not repeated, nor is its traceback.
        """
        self._has_new_lines = True
        line = parse_colors(text.removeprefix(f"[{replica}] "))
        if log_lines.is_start_of_tensorflow(line.plain):
            return
        is_frame = line.plain.startswith(_FRAME)
        if is_frame or (replica in self._tracebacks and line.plain.startswith("    ")):
            self._tracebacks.setdefault(replica, []).append(line)
            return
        if line.plain.startswith(_ERROR):
            first = self._remember(line.plain.removeprefix(_ERROR).rstrip("."), replica)
            if first != replica:
                self._tracebacks.pop(replica, None)
                line = rich_text.Text(f"{_ERROR}the same as that of {first}")
        self._print_traceback(replica)
        self._print_line_of(replica, line)

    def _remember(self, error: str, replica: str) -> str:
        """Return the replica that an error was first shown of."""
        if len(self._errors) == _REMEMBERED_ERRORS and error not in self._errors:
            del self._errors[next(iter(self._errors))]
        return self._errors.setdefault(error, replica)

    def _print_traceback(self, replica: str) -> None:
        for line in self._tracebacks.pop(replica, ()):
            self._print_line_of(replica, line)

    def _print_line_of(self, replica: str, line: rich_text.Text) -> None:
        prefix = rich_text.Text(f"[{replica}] ", self._colour(replica))
        print_line(self._lines, prefix + line)

    def _colour(self, replica: str) -> str:
        if replica not in self._colours:
            self._colours[replica] = next(self._next_colour)
        return self._colours[replica]

    def has_shown(self, message: str) -> bool:
        """Whether an event has said so."""
        return message in self._messages

    def note(self, text: str) -> None:
        """Show a note for people."""
        print_line(self._err, rich_text.Text(text, "dim"))

    def event(self, event: decision.JobEvent) -> None:
        """Show a decision, without the error that a replica's line has already shown."""
        self._messages.add(event.message)
        warns = event.type is decision.EventType.WARNING
        style = "bold yellow" if warns else "bold"
        message = event.message
        if self._share_file:
            message = without_errors(message, self._errors)
        text = rich_text.Text.assemble((event.reason, style), f": {message}")
        print_line(self._err, text)

    def progress(self, progress: job_status.ProgressStatus) -> None:
        """Show the progress of training. The first report starts the bar."""
        if self._bar is None:
            self._print_progress(progress)
            return
        if self._task is None:
            self._task = self._bar.add_task("training", total=progress.total_steps, details="")
            self._bar.start()
        self._bar.update(
            self._task,
            completed=progress.step,
            total=progress.total_steps,
            details=brief_details(progress),
        )

    def _print_progress(self, progress: job_status.ProgressStatus) -> None:
        if self._is_of_trainer and (self._has_new_lines or progress.step == self._shown_step):
            self._has_new_lines, self._shown_step = False, progress.step
            return
        now = self._clock()
        if now >= self._next_line or progress.step == progress.total_steps:
            self._next_line = now + _PLAIN_SECONDS
            print_line(self._err, sentence(progress))

    def split(self, placement: job_status.PlacementStatus) -> None:
        """Show which device has which part of the model."""
        self._lines.print(split_placement.headline(placement))
        self._lines.print(split_placement.table(placement))

    def stopping(self) -> None:
        """Say that the processes are asked to end."""
        print_line(self._err, "stopping; interrupt again to end every process at once")


def _share_file(out: rich_console.Console, err: rich_console.Console) -> bool:
    """Whether both consoles write to one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(out.file.fileno(), err.file.fileno())
    except (OSError, AttributeError):  # a stream of a test or of a notebook
        return False


def without_errors(message: str, errors: Iterable[str]) -> str:
    """Return a message without the quoted errors."""
    quoted = "|".join(map(re.escape, sorted(errors, key=len, reverse=True)))
    return re.sub(rf": (?:{quoted})(?:\.?(?=$|;)|(?=\. ))", "", message) if quoted else message


def progress_bar(console: rich_console.Console) -> rich_progress.Progress:
    """Return a bar that leaves room for share, steps and details in 80 columns."""
    return rich_progress.Progress(
        rich_progress.BarColumn(bar_width=None),
        rich_progress.TaskProgressColumn(),
        rich_progress.MofNCompleteColumn(),
        rich_progress.TextColumn("{task.fields[details]}"),
        console=console,
        expand=True,
        refresh_per_second=4,
        redirect_stdout=False,
        redirect_stderr=False,
    )


def brief_details(progress: job_status.ProgressStatus) -> str:
    """Return what a bar has room for in 80 columns: loss, speed and time to go."""
    parts = []
    if (loss := progress.metrics.get("loss")) is not None:
        parts.append(f"loss {short(loss)}")
    if progress.examples_per_second is not None:
        parts.append(f"{short(progress.examples_per_second)} ex/s")
    if progress.eta is not None:
        parts.append(f"ETA {progress.eta}")
    return "  ".join(parts)


def sentence(progress: job_status.ProgressStatus) -> str:
    """Return progress as one plain line."""
    of_all = "" if progress.total_steps is None else f"/{progress.total_steps}"
    percent = "" if progress.percent is None else f" ({progress.percent}%)"
    return f"step {progress.step}{of_all}{percent}  {details(progress)}".rstrip()


def short(number: str) -> str:
    """Return a number with about four digits that count; any other text as it is."""
    try:
        value = float(number)
    except ValueError:
        return number
    return f"{value:.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def details(progress: job_status.ProgressStatus) -> str:
    """Return the numbers of a report with four digits: loss first, then speed and time to go."""
    metrics = sorted(progress.metrics.items(), key=lambda item: (item[0] != "loss", item[0]))
    parts = [f"{name} {short(value)}" for name, value in metrics]
    if progress.examples_per_second is not None:
        parts.append(f"{short(progress.examples_per_second)} examples/s")
    if progress.eta is not None:
        parts.append(f"ETA {progress.eta}")
    return "  ".join(parts)
