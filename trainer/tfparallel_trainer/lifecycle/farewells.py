"""What is still done when a process ends at once, whoever ends it.

It stands below what takes part in that, such as an owner of checkpoints, and knows none of it.
"""

import contextlib
from collections.abc import Callable, Iterator

_farewells: list[Callable[[], None]] = []
"""Each takes a bounded time."""


@contextlib.contextmanager
def before_end(farewell: Callable[[], None]) -> Iterator[None]:
    """Have something short done if the process ends at once while the body runs."""
    _farewells.append(farewell)
    try:
        yield
    finally:
        _farewells.remove(farewell)


def say() -> None:
    """Do all of them; one that fails keeps no other from it."""
    for farewell in tuple(_farewells):
        with contextlib.suppress(Exception):
            farewell()
