"""Waiting for a condition: the one way in which tests wait for something that takes time."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

LIMIT_SECONDS = 90.0
"""A guard against hanging, which a loaded machine does not reach; no test judges by it."""

POLL_SECONDS = 0.05
SHOWN_CHARACTERS = 2000

T = TypeVar("T")


class TimedOutError(AssertionError):
    """The condition did not hold within the limit."""


def until(
    condition: Callable[[], T],
    what: str,
    limit: float = LIMIT_SECONDS,
    *,
    when: Callable[[T], Any] = bool,
    poll: float = POLL_SECONDS,
) -> T:
    """Call `condition` until `when` holds for its value, and return that value.

    Raises:
        TimedOutError: The limit passed; the message says `what` was awaited and the last value.
    """
    deadline = time.monotonic() + limit
    while not when(value := condition()):
        if time.monotonic() > deadline:
            raise TimedOutError(_message(what, limit, value))
        time.sleep(poll)
    return value


async def until_async(
    condition: Callable[[], Awaitable[T]],
    what: str,
    limit: float = LIMIT_SECONDS,
    *,
    when: Callable[[T], Any] = bool,
    poll: float = POLL_SECONDS,
) -> T:
    """Do the same with a coroutine, which the limit cancels if it hangs.

    Raises:
        TimedOutError: The limit passed; the message says `what` was awaited and the last value.
    """
    value: T | None = None
    try:
        async with asyncio.timeout(limit):
            while True:
                value = await condition()
                if when(value):
                    return value
                await asyncio.sleep(poll)
    except TimeoutError:
        raise TimedOutError(_message(what, limit, value)) from None


async def idle() -> None:
    """Let every other task run until none can: all wait for a change, for time, or for a socket."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)


def _message(what: str, limit: float, value: object) -> str:
    shown = repr(value)[:SHOWN_CHARACTERS]
    return f"Not within {limit:.0f} s: {what}. Last value: {shown}"
