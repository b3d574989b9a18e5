"""Look-ups whose rows do not follow from the batch: one process names each row once in a step."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import ranks, weights
from tfparallel_trainer.step import lookups

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]

TOKENS, LENGTH, WIDTH = 11, 6, 4


class Positions(keras.layers.Layer):
    """Adds a trained vector to each place, as GPT and ViT do it."""

    def __init__(self, rows: Callable[[Any], Any]) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(LENGTH + 2, WIDTH)
        self.rows = rows

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, x: Any) -> Any:
        return x + self.table(self.rows(x))


def static(x: Any) -> Any:
    return keras.ops.arange(LENGTH)


def repeated(x: Any) -> Any:
    """Rows that are named twice, as tables of relative places do it."""
    return keras.ops.convert_to_tensor([0, 1, 1, 2, 2, 2])


def measured(x: Any) -> Any:
    """As many rows as a batch of padded texts is long."""
    return tf.range(tf.shape(x)[1])


def broadcast(x: Any) -> Any:
    """The places of every example: in one process, too, each example names them."""
    return tf.broadcast_to(tf.range(LENGTH), tf.shape(x)[:2])


def text(rows: Callable[[Any], Any], length: int | None = LENGTH) -> keras.Model:
    tokens = keras.Input((length,), dtype="int64")
    embedded = Positions(rows)(keras.layers.Embedding(TOKENS, WIDTH)(tokens))
    hidden = keras.layers.Dense(5, "tanh")(embedded)
    return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))


class Twice(keras.layers.Layer):
    """One table, read by the batch's tokens and as a whole: both kinds of rows in one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = keras.layers.Embedding(TOKENS, WIDTH)

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, tokens: Any) -> Any:
        everywhere = keras.ops.mean(self.table(keras.ops.arange(3)), 0)
        return self.table(tokens) * (1 + everywhere)


def tied() -> keras.Model:
    tokens = keras.Input((LENGTH,), dtype="int64")
    hidden = keras.layers.Dense(5, "tanh")(Twice()(tokens))
    return keras.Model(tokens, keras.layers.Dense(1)(keras.layers.GlobalAveragePooling1D()(hidden)))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "static": lambda: text(static),
    "repeated": lambda: text(repeated),
    "measured": lambda: text(measured, None),
    "broadcast": lambda: text(broadcast),
    "tied": tied,
}
OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "clipped": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.3),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "sgd": lambda: keras.optimizers.SGD(0.05),
}


def examples() -> tuple[Any, Any, None]:
    random = np.random.default_rng(0)
    return random.integers(0, TOKENS, size=(31, LENGTH)), random.normal(size=(31, 1)), None


def plain(build: Callable[[], keras.Model], optimizer: Callable[[], Any]) -> keras.Model:
    """Keras' own training over the examples in their order, once."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(optimizer(), "mse")
    x, y, _ = examples()
    for first in range(0, len(x), 7):
        model.train_on_batch(x[first : first + 7], y[first : first + 7])
    return model


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("optimizer", repeats.some(list(OPTIMIZERS), ["adam"]))
def test_rows_that_the_batch_does_not_name_count_once(name: str, optimizer: str) -> None:
    # 31 examples in batches of 7 over 4 ranks: the last batch leaves a rank without examples.
    build, optimize = MODELS[name], OPTIMIZERS[optimizer]
    expected = plain(build, optimize)
    module = ranks.module(build, lambda model: model.compile(optimize(), "mse"))
    replicas, _ = ranks.run(module, examples(), 4, 7)
    for own in replicas:
        trained = own.model.get_weights()
        assert weights.difference(trained, expected.get_weights()) <= weights.TOLERANCE


BATCH = lookups.Lookup(of_batch=True)
SOURCES: dict[str, list[tuple[lookups.Lookup, ...]]] = {
    "static": [(BATCH,), (lookups.Lookup(of_batch=False, rows=(0, 1, 2, 3, 4, 5)),)],
    "repeated": [(BATCH,), (lookups.Lookup(of_batch=False, rows=(0, 1, 1, 2, 2, 2)),)],
    "measured": [(BATCH,), (lookups.Lookup(of_batch=False),)],
    "broadcast": [(BATCH,), (BATCH,)],
    "tied": [(BATCH, lookups.Lookup(of_batch=False, rows=(0, 1, 2)))],
}
"""What names the rows of each table of a model."""


@pytest.mark.parametrize("name", MODELS)
def test_what_names_the_rows_of_a_table_follows_from_the_graph(name: str) -> None:
    model = MODELS[name]()
    sources: list[tuple[lookups.Lookup, ...]] = []

    @tf.function(autograph=False)
    def step(tokens: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(tokens))
        tables = [one.value for one in model.trainable_variables if one.path.endswith("embeddings")]
        sources.extend(lookups.of(gradient) for gradient in tape.gradient(total, tables))
        return total

    step.get_concrete_function(tf.TensorSpec((None, None), tf.int64))
    assert sources == SOURCES[name]
