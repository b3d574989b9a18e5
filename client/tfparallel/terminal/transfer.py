"""Shows the progress of a download."""

import contextlib
import time
from collections.abc import Callable, Iterator

from rich import progress as rich_progress

from tfparallel.terminal import display

_QUIET_SECONDS = 2.0
"""A shorter download shows no bar."""


@contextlib.contextmanager
def bar(total: int) -> Iterator[Callable[[int], None]]:
    """Show a bar on a terminal once a download takes longer; yields what counts its bytes."""
    _, err = display.consoles()
    columns = (
        rich_progress.BarColumn(),
        rich_progress.DownloadColumn(),
        rich_progress.TransferSpeedColumn(),
        rich_progress.TimeRemainingColumn(),
    )
    shown = rich_progress.Progress(*columns, console=err, transient=True)
    task = shown.add_task("", total=total)
    begin = time.monotonic()

    def advance(size: int) -> None:
        shown.advance(task, size)
        is_long = time.monotonic() - begin > _QUIET_SECONDS
        if err.is_terminal and is_long and not shown.live.is_started:
            shown.start()

    try:
        yield advance
    finally:
        if shown.live.is_started:
            shown.stop()
