"""Spares the garbage collector what stays alive: modules, tests, what earlier files have left.

Tests that are being collected are no garbage, and to look for some took a sixth of the time.

Keras collects garbage wherever it forgets its state, which takes a quarter of a second for what
TensorFlow's import leaves alone.
"""

import gc
from collections.abc import Generator

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    gc.disable()
    try:
        return (yield)
    finally:
        _spare()
        gc.enable()


@pytest.hookimpl(trylast=True)  # after the fixtures of a file have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _spare()


def _spare() -> None:
    gc.collect()
    gc.freeze()
