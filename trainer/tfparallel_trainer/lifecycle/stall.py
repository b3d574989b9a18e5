"""Ends a process that shows no sign of life, after showing where every thread stands.

A thread of its own watches, since the main thread is the one that is stuck. It may be stuck in a
collective whose peer does not come, in the user's data function, or on a disk that does not answer.
"""

import contextlib
import dataclasses
import faulthandler
import pathlib
import sys
import threading
import time
import traceback
import types
from collections.abc import Callable, Iterator
from typing import NamedTuple, TextIO

from tfparallel_trainer import errors
from tfparallel_trainer.contract import hangs, job_file

_STDERR = sys.__stderr__ or sys.stderr
"""A real file, whatever a notebook or a test has put in its place."""

_LOOKS = 20
"""How often to check a limit before it is over."""

_OTHERS = 10
"""How many times the limit a wait for other replicas may take. Each thing that they do meanwhile
has the limit for itself, and a replica that is stuck ends itself."""

_START_SECONDS = 600.0
"""What a cluster's start may take beyond startTimeoutSeconds; a TPU's takes longest."""

_LIBRARIES = frozenset({"tensorflow", "keras"})
"""Folders whose calls say little about where a program stands."""

_CALLS = 4
"""How many calls of the main thread a message names."""

LOCKED_SECONDS = 60.0
"""How much longer a process may take that does not even let this thread run."""


_WORK = "trainer.stepTimeoutSeconds"
_FIRST_STEP = "trainer.firstStepTimeoutSeconds"
_EVALUATION = "trainer.evaluationTimeoutSeconds"
_COLLECTIVE = "CommunicationOptions.timeout_seconds"
"""The limit of a collective, which only a strategy of the user's own can have."""


@dataclasses.dataclass(frozen=True, slots=True)
class Limits:
    """Maximum seconds between two signs of life."""

    work: float
    """The limit while this process works, and in steps, which all replicas make together."""
    wait: float
    """The limit while this process waits for others outside of steps."""
    first_step: float | None = None
    """The limit until the first step has ended; None: that of work."""
    evaluation: float | None = None
    """The limit in an evaluation; None: that of work."""

    @property
    def shortest(self) -> float:
        """The shortest limit of this process's work."""
        return min(self._of_work)

    @property
    def longest(self) -> float:
        """The longest limit of this process's work."""
        return max(self._of_work)

    @property
    def _of_work(self) -> tuple[float, ...]:
        return (self.work, self.first_step or self.work, self.evaluation or self.work)


def limits(spec: job_file.TrainerSpec) -> Limits:
    """Return the limits of a job."""
    work = Limits(
        work=spec.step_timeout_seconds,
        wait=0.0,
        first_step=spec.first_step_timeout_seconds,
        evaluation=spec.evaluation_timeout_seconds,
    )
    wait = _OTHERS * work.longest + spec.start_timeout_seconds + _START_SECONDS
    return dataclasses.replace(work, wait=wait)


class _Limit(NamedTuple):
    """A limit, and the field that sets it."""

    seconds: float
    field: str


@dataclasses.dataclass(frozen=True, slots=True)
class _Sign:
    """A sign of life, and the time until the next one is due."""

    at: float
    what: str
    limit: _Limit


class Watch:
    """Receives the signs of life of a process: something has begun or ended."""

    def __init__(self, limits: Limits, stream: TextIO = _STDERR) -> None:
        """Take the limits between two signs, and a real file that stacks are written to."""
        self._limits = limits
        self._stream = stream
        self._work = _Limit(limits.work, _WORK)
        """The limit while this process does not wait for others."""
        self._sign = _Sign(time.monotonic(), "the start", self._work)
        self._over = False
        self._changing = threading.Lock()

    def moved(self, what: str) -> None:
        """Record a sign of life, such as "step 7" or "the call of training_data began"."""
        with self._changing:
            self._sign = _Sign(time.monotonic(), what, self._sign.limit)

    @contextlib.contextmanager
    def waiting(self, what: str = "the wait for the other replicas") -> Iterator[None]:
        """Give the body the time of a wait for others, which it may spend without Python's lock."""
        self._change(f"{what} began", _Limit(self._limits.wait, _WORK))
        try:
            yield
        finally:
            self._change(f"{what} ended", self._work)

    def first_step(self) -> contextlib.AbstractContextManager[None]:
        """Give the body, which ends with the first step, the limit of that."""
        return self._limited(self._limits.first_step, _FIRST_STEP)

    def evaluation(self) -> contextlib.AbstractContextManager[None]:
        """Give the body the limit of an evaluation."""
        return self._limited(self._limits.evaluation, _EVALUATION)

    def postpone(self) -> None:
        """Have the process ended a while after the limit, by a timer that needs no lock.

        TensorFlow may wait for a peer with Python's lock in its hand.
        """
        with self._changing:
            if not self._over:
                faulthandler.dump_traceback_later(
                    self._sign.limit.seconds + LOCKED_SECONDS, exit=True, file=self._stream
                )

    def stalled(self) -> errors.StalledError | None:
        """Return the error if the last sign of life is too old."""
        with self._changing:
            sign = self._sign
        seconds = time.monotonic() - sign.at
        if seconds < sign.limit.seconds:
            return None
        main = sys._current_frames().get(threading.main_thread().ident or 0)
        hang = hangs.Hang(sign.what, _describe_stack(main))
        problem = hangs.describe(hang, seconds, sign.limit.field)
        return errors.StalledError(
            f"{problem}The stacks of all threads stand above. See whether another replica, the data"
            " or a disk is stuck, or give it more time."
        )

    def describe_timeout(self, error: BaseException) -> str:
        """Return the sentence about a hang that ended with an error, before the limit."""
        with self._changing:
            sign = self._sign
        frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
        hang = hangs.Hang(sign.what, _describe_stack(frames[-1] if frames else None))
        return hangs.describe(hang, time.monotonic() - sign.at, _COLLECTIVE)

    def end(self) -> None:
        """Stop the timer for good."""
        with self._changing:
            self._over = True
            faulthandler.cancel_dump_traceback_later()

    @contextlib.contextmanager
    def _limited(self, seconds: float | None, field: str) -> Iterator[None]:
        """Give the body a limit of its own. None: it keeps the limit that holds."""
        outer_limit = self._work
        if seconds is not None:
            self._replace_work_limit(_Limit(seconds, field))
        try:
            yield
        finally:
            if seconds is not None:
                self._replace_work_limit(outer_limit)

    def _replace_work_limit(self, work: _Limit) -> None:
        """Count another limit from now, after the same sign of life."""
        self._work = work
        self._change(self._sign.what, work)

    def _change(self, what: str, limit: _Limit) -> None:
        with self._changing:
            self._sign = _Sign(time.monotonic(), what, limit)
        self.postpone()


@contextlib.contextmanager
def watching(
    limits: Limits, give_up: Callable[[errors.TrainerError], None], stream: TextIO = _STDERR
) -> Iterator[Watch]:
    """Watch this process while the body runs; `give_up` ends it, and is called from a thread."""
    watch = Watch(limits, stream)
    over = threading.Event()

    def look() -> None:
        while not over.wait(limits.shortest / _LOOKS):
            watch.postpone()
            error = watch.stalled()
            if error is not None:
                faulthandler.dump_traceback(stream, all_threads=True)
                give_up(error)
                return

    watch.postpone()
    thread = threading.Thread(target=look, name="stall", daemon=True)
    thread.start()
    try:
        yield watch
    finally:
        over.set()
        watch.end()
        thread.join()


def _describe_stack(frame: types.FrameType | None) -> str:
    """Return the innermost calls of a thread outside of libraries, and the innermost of all."""
    calls: list[str] = []
    while frame is not None and len(calls) < _CALLS:
        path = pathlib.PurePath(frame.f_code.co_filename)
        if not calls or _LIBRARIES.isdisjoint(path.parts):
            calls.append(f"{frame.f_code.co_name} ({path.name}:{frame.f_lineno})")
        frame = frame.f_back
    return " < ".join(calls) or "no call (unknown)"
