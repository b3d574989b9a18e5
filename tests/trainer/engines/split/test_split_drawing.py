"""Rows of initial values, drawn without those before them."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfparallel_trainer.engines.split.model import initial_values

FIND = keras.initializers.get
IN_ROWS = (
    "glorot_uniform",
    "he_normal",
    "lecun_uniform",
    "random_normal",
    "random_uniform",
    "truncated_normal",
    "zeros",
    "ones",
)
ROWS = ((0, 3), (1, 2), (250, 501), (33, 77), (500, 501))


def bare(initializer: Any, shape: tuple[int, ...], dtype: str) -> Any:
    with keras.StatelessScope(initialize_variables=False):
        return keras.Variable(initializer, shape=shape, dtype=dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("name", IN_ROWS)
def test_rows_have_the_bits_of_the_whole(name: str, dtype: str) -> None:
    for shape in ((501, 7), (501, 3, 4), (2001,)):
        variable = bare(FIND(name), shape, dtype)
        rows, whole = initial_values.rows_of(variable), np.asarray(variable.value)
        assert rows is not None
        for low, high in ROWS:
            np.testing.assert_array_equal(rows(low, high), whole[low:high])


def test_what_needs_the_whole_says_so() -> None:
    def drawn(shape: Any, dtype: Any = None) -> Any:
        return keras.ops.cumsum(keras.random.normal(shape, dtype=dtype, seed=1))

    def table(shape: Any, dtype: Any = None) -> Any:
        return keras.ops.convert_to_tensor(np.ones(shape), dtype=dtype)

    seeds = keras.random.SeedGenerator(1)
    for initializer in (FIND("orthogonal"), FIND("identity"), drawn, table):
        assert initial_values.rows_of(bare(initializer, (6, 6), "float32")) is None
    drawn_once = keras.initializers.RandomNormal(seed=seeds)
    assert initial_values.rows_of(bare(drawn_once, (6, 6), "float32")) is None
    assert initial_values.rows_of(bare(FIND("zeros"), (), "float32")) is None


BYTES = 64_000_000


def part_drawn() -> int:
    """Bytes that drawing a part of a large variable takes at most."""
    table = bare(FIND("uniform"), (500_000, 32), "float32")
    tf.config.experimental.reset_memory_stats("CPU:0")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    parts = {"table": (slice(300_000, 302_000), slice(8, 16))}
    ((key, value),) = initial_values.draw_values({"table": table}, parts)
    peak = tf.config.experimental.get_memory_info("CPU:0")["peak"] - before
    assert (key, value.shape) == ("table", (2_000, 8))
    np.testing.assert_array_equal(value, np.asarray(table.value)[300_000:302_000, 8:16])
    return int(peak)


def test_a_large_variable_is_never_in_memory_as_a_whole(isolated: Callable[..., Any]) -> None:
    assert isolated(part_drawn) < BYTES // 4
