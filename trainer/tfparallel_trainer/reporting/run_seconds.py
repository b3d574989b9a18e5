"""Where the time of the coordinator's process goes after its first step, for goodput."""

import contextlib
import time
from collections.abc import Callable, Iterator

from tfparallel_trainer.contract import progress


class RunTimes:
    """Divides the time since the first step of this process ended."""

    def __init__(self, recorded_step: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        """Begin without a step.

        Args:
            recorded_step: the last step that an earlier attempt has recorded.
            clock: returns seconds.
        """
        self._recorded_step = recorded_step
        self._clock = clock
        self._first_step: float | None = None
        self._evaluating = self._checkpointing = self._recomputing = 0.0

    def stepped(self, step: int, waited: float) -> None:
        """Take in a step that is made.

        Args:
            step: its number.
            waited: seconds that this process has waited for its input after its first step.
        """
        if self._first_step is None:
            self._first_step = self._clock()
        if step <= self._recorded_step:
            paused = self._evaluating + self._checkpointing + waited
            self._recomputing = max(0.0, self._clock() - self._first_step - paused)

    @contextlib.contextmanager
    def evaluating(self) -> Iterator[None]:
        """Count the time of an evaluation for which training waits."""
        began = self._clock()
        yield
        self._evaluating += self._clock() - began if self._first_step is not None else 0.0

    @contextlib.contextmanager
    def checkpointing(self) -> Iterator[None]:
        """Count the time of a checkpoint for which training waits."""
        began = self._clock()
        yield
        self._checkpointing += self._clock() - began if self._first_step is not None else 0.0

    def divide(self, waited: float) -> progress.RunSeconds:
        """Return the whole seconds of each activity; 0 before the first step."""
        if self._first_step is None:
            return progress.RunSeconds(training=0)
        left = int(self._clock() - self._first_step)
        parts = []
        for seconds in (self._evaluating, self._checkpointing, self._recomputing, waited):
            parts.append(min(left, int(seconds)))
            left -= parts[-1]
        evaluating, checkpointing, recomputing, input_wait = parts
        return progress.RunSeconds(
            training=left,
            input_wait=input_wait,
            evaluating=evaluating,
            checkpointing=checkpointing,
            recomputing=recomputing,
        )
