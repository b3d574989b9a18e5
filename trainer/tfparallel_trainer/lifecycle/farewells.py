"""Actions that still run when a process exits at once, whatever ends it.

This module is below its users, such as the owner of checkpoints, and imports none of them.
"""

import contextlib
from collections.abc import Callable, Iterator

_farewells: list[Callable[[], None]] = []
"""The actions, each of which takes a limited time."""


@contextlib.contextmanager
def before_end(farewell: Callable[[], None]) -> Iterator[None]:
    """Run a short action if the process exits at once while the body runs."""
    _farewells.append(farewell)
    try:
        yield
    finally:
        _farewells.remove(farewell)


def say() -> None:
    """Run all actions, even if one of them fails."""
    for farewell in tuple(_farewells):
        with contextlib.suppress(Exception):
            farewell()
