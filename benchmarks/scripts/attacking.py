"""Runs attacks at the same time for some seconds."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

T = TypeVar("T")

Attack = Callable[[T], Coroutine[Any, Any, None]]


async def run(attacks: Sequence[tuple[Attack[T], int]], subject: T, seconds: float) -> float:
    """Run each attack several times at once on a subject; return the seconds that it took.

    Raises:
        ExceptionGroup: the attacks that failed otherwise than by the network.
    """
    begun = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = [
            group.create_task(_repeat(attack, subject))
            for attack, number in attacks
            for _ in range(number)
        ]
        await asyncio.sleep(seconds)
        duration = time.monotonic() - begun
        for task in tasks:
            task.cancel()
    return duration


async def _repeat(attack: Attack[T], subject: T) -> None:
    """Attack again after an error of the network that nobody foresaw; an attack may also end."""
    while True:
        with contextlib.suppress(OSError):
            await attack(subject)
            return
