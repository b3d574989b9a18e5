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
    """The condition did not hold within the limit, or can no longer hold."""


def until(
    condition: Callable[[], T],
    what: str,
    limit: float = LIMIT_SECONDS,
    *,
    when: Callable[[T], Any] = bool,
    in_vain: Callable[[], str] = str,
    poll: float = POLL_SECONDS,
) -> T:
    """Call `condition` until `when` holds for its value, and return that value.

    `in_vain` returns why the condition can no longer hold; empty while it can.

    Raises:
        TimedOutError: The limit passed, or waiting is in vain; the message says `what` was awaited
            and the last value, or why it cannot come.
    """
    deadline = time.monotonic() + limit
    while True:
        reason = in_vain()  # first, because what ends may have done its part just before
        if when(value := condition()):
            return value
        if reason:
            raise TimedOutError(f"In vain: {what}. {reason}")
        if time.monotonic() > deadline:
            raise TimedOutError(_message(what, limit, value))
        time.sleep(poll)


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


async def until_in_loop(
    condition: Callable[[], T],
    what: str,
    limit: float = LIMIT_SECONDS,
    *,
    when: Callable[[T], Any] = bool,
    poll: float = POLL_SECONDS,
) -> T:
    """Do the same with a plain function while the event loop runs; `until` would stop it."""

    async def value() -> T:
        return condition()

    return await until_async(value, what, limit, when=when, poll=poll)


async def idle() -> None:
    """Let every other task run until none can: all wait for a change, for time, or for a socket."""
    ready = asyncio.get_running_loop()._ready  # type: ignore[attr-defined]
    await asyncio.sleep(0)
    while ready:
        await asyncio.sleep(0)


def _message(what: str, limit: float, value: object) -> str:
    shown = repr(value)[:SHOWN_CHARACTERS]
    return f"Not within {limit:.0f} s: {what}. Last value: {shown}"
