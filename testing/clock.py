"""The one virtual clock of tests: time passes when a test lets it pass."""

import datetime

from testing import waiting

START = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)


class Clock:
    """Stands still until it is advanced; takes the place of `time.monotonic` or of `time`."""

    def __init__(self, now: float = 0.0) -> None:
        self.now = now
        self.reads = 0
        """How often the time was read, by whichever thread."""

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
        """Let time pass, and return when another thread has read it so often since."""
        self.now += seconds
        before = self.reads
        if reads:
            waiting.until(lambda: self.reads - before >= reads, "a read of the clock", poll=0.001)
