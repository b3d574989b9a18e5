"""A bar that follows a job: in a notebook, on a terminal, or as lines of a file."""

import importlib
import shutil
import sys
import time
from typing import Any, TextIO

from tfparallel import job_html, models

_WIDTH = 24
"""Letters of the bar on a terminal."""

_SECONDS = 1.0
"""Shortest time between two lines in a file."""

_CLEAR = "\r\x1b[K"
"""Returns to the begin of a terminal's line and empties it."""


class ProgressBar:
    """Shows how far a job is each time that it is called with the job.

    Give it to `wait_for_job_status` as a callback. A notebook shows the HTML view of the job, which
    changes in place; a terminal one line; a file a line at most once a second.
    """

    def __init__(self, file: TextIO | None = None) -> None:
        """Choose where to show jobs; None: the notebook, or the standard error."""
        self._file = file
        self._notebook = None if file is not None else _find_notebook()
        self._handle: Any = None
        self._last_line = ""
        self._next_line = 0.0

    def __call__(self, job: models.Job) -> None:
        """Show a job as it is now; one that has ended for the last time."""
        if self._notebook is None:
            self._print(job, self._file or sys.stderr)
        elif self._handle is None:
            self._handle = self._notebook.display(job, display_id=True)
        else:
            self._handle.update(job)

    def _print(self, job: models.Job, file: TextIO) -> None:
        line = job_html.render_line(job.name, job.state, job.status)
        if file.isatty():
            columns = shutil.get_terminal_size().columns - 1
            end = "\n" if job.is_finished else ""
            print(f"{_CLEAR}{_draw(job)}{line}"[: columns + len(_CLEAR)], end=end, file=file)
        elif line != self._last_line and (job.is_finished or time.monotonic() >= self._next_line):
            self._last_line, self._next_line = line, time.monotonic() + _SECONDS
            print(line, file=file)
        file.flush()


def _draw(job: models.Job) -> str:
    progress = job.progress
    if progress is None or progress.percent is None:
        return ""
    full = _WIDTH * progress.percent // 100
    return f"[{'#' * full}{'.' * (_WIDTH - full)}] "


def _find_notebook() -> Any:
    """Return IPython's module that shows objects, if a notebook's kernel runs this code."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    if shell is None or not hasattr(shell, "kernel"):
        return None
    return importlib.import_module("IPython.display")
