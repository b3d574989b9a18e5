"""When a checkpoint is due: after so many steps, so many minutes, or whichever comes first."""

import time
from collections.abc import Callable

from tfparallel_trainer.contract import job_file


class Schedule:
    """The one rule. Steps are counted by every process; only the chief looks at a clock.

    Args:
        spec: the job's checkpoints; None is never due.
        is_chief: whether this process's clock counts.
        clock: seconds that only grow.
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

    def saved(self) -> None:
        """A checkpoint was saved, for whatever reason: minutes count from now."""
        self._last = self._clock()
