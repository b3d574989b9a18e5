import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

# Before anything imports TensorFlow: it reads these only then.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "-1")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "2")

import keras
import pytest
import tensorflow as tf

DEVICES_VARIABLE = "TFPARALLEL_TEST_DEVICES"
LOGICAL_DEVICES = int(os.environ.get(DEVICES_VARIABLE, "8"))
"""The CPU of the test process is divided, so that it can hold several ranks."""

# At import, because a test of another folder may be the first to use TensorFlow.
tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0],
    [tf.config.LogicalDeviceConfiguration() for _ in range(LOGICAL_DEVICES)],
)


@pytest.fixture
def float64() -> Iterator[None]:
    before = keras.config.floatx()
    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")
    yield
    keras.config.set_floatx(before)
    keras.config.set_dtype_policy(before)


@pytest.fixture
def apart() -> Iterator[Callable[..., Any]]:
    """Calls a function of a test module, by its arguments, in a process that has run nothing else.

    TensorFlow counts the chunks that its allocator gives out, and one can be twice as large as what
    was asked for where earlier tests have left holes of such a size.
    """
    with futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        yield lambda function, *arguments: pool.submit(function, *arguments).result()
