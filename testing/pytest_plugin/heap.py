"""Spares the garbage collector what stays alive: modules, tests, what earlier files have left.

Keras collects garbage wherever it forgets its state, which takes a quarter of a second for what
TensorFlow's import leaves alone.
"""

import gc

import pytest


def pytest_collection_finish() -> None:
    _spare()


@pytest.hookimpl(trylast=True)  # after the fixtures of a file have ended
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if nextitem is not None and nextitem.path != item.path:
        _spare()


def _spare() -> None:
    gc.collect()
    gc.freeze()
