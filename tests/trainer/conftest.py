import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:  # it imports TensorFlow, and the unit tier does without
    from testing.trainer import runs as trainings


@pytest.fixture
def runs(tmp_path: pathlib.Path) -> "trainings.Runs":
    """Starts trainer processes in a folder of the test's own."""
    from testing.trainer import runs as trainings

    return trainings.Runs(tmp_path)


@pytest.fixture
def float64() -> None:
    """Let Keras compute in 64 bits until the test ends."""
    import keras

    keras.config.set_floatx("float64")
    keras.config.set_dtype_policy("float64")


@pytest.fixture
def isolated() -> Callable[..., Any]:
    """Calls a function of a test module, by its arguments, in a process that has run nothing else.

    TensorFlow counts the chunks that its allocator gives out, and one can be twice as large as what
    was asked for where earlier tests have left holes of such a size.
    """
    from testing.trainer import trainer_processes

    return trainer_processes.call
