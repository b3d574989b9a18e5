"""The random generators of the process: Python's, NumPy's, TensorFlow's and Keras'.

A script that calls `fit` draws from them itself: `fit` seeds them for a while only, and then puts
them back. It sets TensorFlow's seed without `tf.random.set_seed`, which also restarts every
operation that has a seed of its own.
"""

import contextlib
import random
from collections.abc import Iterator

import keras
import numpy as np
from keras.src.backend.common import global_state  # the public API sets this state only
from tensorflow.python.eager import context  # as above

_GENERATOR = "global_seed_generator"
_KERAS = ("global_random_seed", _GENERATOR)


@contextlib.contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Seed all generators as `keras.utils.set_random_seed` does; afterwards they are as before."""
    tensorflow = context.context()
    python, numpy = random.getstate(), np.random.get_state()
    operations = tensorflow._seed, getattr(tensorflow, "_rng", None)
    attributes = {name: global_state.get_global_attribute(name) for name in _KERAS}
    try:
        random.seed(seed)
        np.random.seed(seed)
        tensorflow._seed, tensorflow._rng = seed, random.Random(seed)  # noqa: S311
        global_state.set_global_attribute("global_random_seed", seed)
        global_state.set_global_attribute(_GENERATOR, None)
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        tensorflow._seed, tensorflow._rng = operations
        for name, value in attributes.items():
            global_state.set_global_attribute(name, value)


@contextlib.contextmanager
def drawing_from(generator: keras.random.SeedGenerator) -> Iterator[None]:
    """Let Keras' operations without a seed draw from a generator, in this thread."""
    before = global_state.get_global_attribute(_GENERATOR)
    global_state.set_global_attribute(_GENERATOR, generator)
    try:
        yield
    finally:
        global_state.set_global_attribute(_GENERATOR, before)


@contextlib.contextmanager
def seeded_for_good(seed: int) -> Iterator[None]:
    """Seed all generators and leave them so, for data functions that draw later."""
    keras.utils.set_random_seed(seed)
    yield
