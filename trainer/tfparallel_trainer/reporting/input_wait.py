"""How long a process waits for its input, and a warning when that is long."""

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator
from typing import TypeVar

from tfparallel_trainer.contract import progress

_Batch = TypeVar("_Batch")

_WAITED_SECONDS = 1.0
"""Waiting that is shorter in all is not worth a warning."""

_SPAN_SECONDS = 10.0
"""Epochs are looked at together until they are this long."""


@dataclasses.dataclass(slots=True)
class StepTimes:
    """Steps, and how long they took with and without waiting."""

    waited: float = 0.0
    """Seconds from asking for a batch to having it."""
    total: float = 0.0
    """Seconds from asking for a batch to asking for the next one."""
    steps: int = 0

    @property
    def share(self) -> float:
        """Which part of the time was waiting."""
        return self.waited / self.total if self.total else 0.0

    def add(self, waited: float, total: float) -> None:
        """Take in a step."""
        self.waited += waited
        self.total += total
        self.steps += 1


class Wait:
    """Keeps the time of this process's input.

    The first step of all is left out. Its time is mostly tracing, and its batch may come late
    because a resumed epoch is read over.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.seconds = 0.0
        """How long this process has waited in all."""
        self._recent = StepTimes()
        self._lately = StepTimes()
        self._began = False
        self._warned = False

    def timed(self, batches: Generator[_Batch, None, None]) -> Generator[_Batch, None, None]:
        """Hand out the batches of an epoch, and time them."""
        if self._lately.total >= _SPAN_SECONDS:
            self._lately = StepTimes()
        self._warned = False
        with contextlib.closing(batches):
            asked = self._clock()
            for batch in batches:
                arrival = self._clock()
                yield batch
                done = self._clock()
                if self._began:
                    self.seconds += arrival - asked
                    self._recent.add(arrival - asked, done - asked)
                    self._lately.add(arrival - asked, done - asked)
                self._began = True
                asked = done

    def recent(self) -> StepTimes:
        """What is new since the last call."""
        span, self._recent = self._recent, StepTimes()
        return span

    def warning(self) -> str | None:
        """A sentence when input has kept the devices waiting lately; at most once an epoch."""
        span = self._lately
        if self._warned or span.waited < _WAITED_SECONDS or span.share <= progress.MAX_INPUT_WAIT:
            return None
        self._warned = True
        self._lately = StepTimes()
        return (
            f"input keeps the devices waiting for {span.share:.0%} of the time "
            f"({1000 * span.waited / span.steps:.1f} of {1000 * span.total / span.steps:.1f} ms "
            "a step). Let the data functions do less for each example or do it in parallel "
            "(num_parallel_calls, cache), or give each replica more CPUs"
        )
