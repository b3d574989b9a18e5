"""The virtual clock of tests: only a test advances its time."""

import datetime

from testing import waiting

START = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


class Clock:
    """A clock that only `advance` moves; replaces `time.monotonic` or `time`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.reads = 0
        """Number of reads of the time, by all threads."""

    def __call__(self) -> float:
        return self.monotonic()

    def monotonic(self) -> float:
        self.reads += 1
        return self.now

    def utc(self) -> datetime.datetime:
        """The same time as a date, for code that writes dates."""
        self.reads += 1
        return START + datetime.timedelta(seconds=self.now)

    def advance(self, seconds: float, reads: int = 0) -> None:
        """Advance the time, and return once other threads have read it `reads` times since."""
        self.now += seconds
        before = self.reads
        if reads:
            waiting.until(lambda: self.reads - before >= reads, "a read of the clock", poll=0.001)
