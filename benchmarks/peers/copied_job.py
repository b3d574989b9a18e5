"""The module of a job whose state is copied in memory in every other window of steps.

`BENCHMARK_MODEL` names the model, and `BENCHMARK_WINDOW` is the number of steps in a window.
"""

import os
import time

import tensorflow as tf

from benchmarks.peers import workloads
from benchmarks.peers.job import NAME, build_model, compile_model  # noqa: F401 (for the trainer)
from tfparallel_trainer.loop import state_copier

WINDOW = int(os.environ["BENCHMARK_WINDOW"])


class WindowedCopier(state_copier.StateCopier):
    """Makes no copies in every second window, in which its clock stands still."""

    def __init__(self, *arguments, **named):
        super().__init__(*arguments, clock=self._seconds_with_copies, **named)
        self._steps = 0
        self._paused_at = None
        self._paused_seconds = 0.0

    @property
    def due(self):
        window, step = divmod(self._steps, WINDOW)
        self._steps += 1  # the trainer asks once in each step
        copies = window % 2 == 0
        if step == 0 and not copies:
            self._paused_at = time.monotonic()
        elif step == 0 and self._paused_at is not None:
            self._paused_seconds += time.monotonic() - self._paused_at
            self._paused_at = None
        return copies and super().due

    def _seconds_with_copies(self):
        now = time.monotonic() if self._paused_at is None else self._paused_at
        return now - self._paused_seconds


state_copier.StateCopier = WindowedCopier  # type: ignore[misc]


def training_data():
    return tf.data.Dataset.from_tensor_slices(workloads.draw(NAME)).repeat()
