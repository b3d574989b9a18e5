"""The time, as the processes that act read it; what decides takes it as a value."""

import datetime
from collections.abc import Callable

Clock = Callable[[], datetime.datetime]
"""Returns the time; tests have other clocks."""


def utc_now() -> datetime.datetime:
    """Return the time, with time zone."""
    return datetime.datetime.now(datetime.UTC)
