"""Controls Python's garbage collection, so that it never stops the event loop for long."""

import gc
from collections.abc import Callable
from typing import TypeVar

R = TypeVar("R")

YOUNG_ONLY = 1_000_000
"""Threshold that keeps the oldest generation out of collections.

Used until the first lists are complete. Their objects live as long as the process, so collections
skip them.
"""

YOUNG_OBJECTS = 2_000
"""Number of new objects after which Python collects them, once the first lists are complete.

With Python's default of 700, collections take a seventh of the operator's CPU time while many jobs
start. A larger number leaves more garbage: 5,000 leaves 1 MB.
"""


def spare_listed_objects() -> Callable[[], None]:
    """Collect no old objects from now on. Return a function that ends this."""
    gc.freeze()
    thresholds = gc.get_threshold()
    gc.set_threshold(*thresholds[:2], YOUNG_ONLY)

    def skip_listed() -> None:
        gc.freeze()
        gc.set_threshold(YOUNG_OBJECTS, *thresholds[1:])

    return skip_listed


def stop_collecting() -> None:
    """Stop collections until the process ends, because one takes 55 ms with 1,000 jobs."""
    gc.disable()


def call_without_collection(compute: Callable[[], R], is_lasting: Callable[[R], bool]) -> R:
    """Compute without a collection, which stops all threads for long among thousands of objects.

    Args:
        compute: makes them.
        is_lasting: whether a result is large and is freed at its end without a collection, so that
            later ones skip it. What is garbage before is collected first, or it would be skipped
            too.
    """
    was_enabled = gc.isenabled()
    gc.collect(1)
    gc.disable()
    try:
        result = compute()
        if is_lasting(result):
            gc.freeze()
    finally:
        if was_enabled:
            gc.enable()
    return result
