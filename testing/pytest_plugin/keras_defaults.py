"""Gives each test Keras' default types: modules of jobs set them where a test imports them."""

import sys

import pytest


@pytest.hookimpl(trylast=True)  # after the fixtures of the test have ended
def pytest_runtest_teardown() -> None:
    if "keras" not in sys.modules:
        return
    import keras
    from keras.src.backend.common import global_state

    keras.config.set_floatx("float32")
    global_state.set_global_attribute("dtype_policy", None)  # follows floatx again
