"""Look-ups whose rows do not follow from the batch: one process names each row once in a step."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import lookup_models, ranks, weights
from tfparallel_trainer.objective import lookups

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]

SIZE = 5
"""Of a batch: of 31 examples, the last batch leaves a rank of two without an example."""

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "adam": lambda: keras.optimizers.Adam(0.05),
    "clipped": lambda: keras.optimizers.Adam(0.05, global_clipnorm=0.3),
    "adagrad": lambda: keras.optimizers.Adagrad(0.05),
    "sgd": lambda: keras.optimizers.SGD(0.05),
}


def plain(build: Callable[[], keras.Model], optimizer: Callable[[], Any]) -> keras.Model:
    """Keras' own training over the examples in their order, once."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(1)
    model = build()
    model.compile(optimizer(), "mse")
    x, y, _ = lookup_models.examples()
    for first in range(0, len(x), SIZE):
        model.train_on_batch(x[first : first + SIZE], y[first : first + SIZE])
    return model


@pytest.mark.parametrize(
    # The rows of `broadcast` are the batch's, as those of any embedding.
    "name",
    repeats.some(lookup_models.ALL, lookup_models.ALL.keys() - {"broadcast"}),
)
@pytest.mark.parametrize("optimizer", repeats.some(list(OPTIMIZERS), ["adam"]))
def test_rows_that_the_batch_does_not_name_count_once(name: str, optimizer: str) -> None:
    build, optimize = lookup_models.ALL[name], OPTIMIZERS[optimizer]
    expected = plain(build, optimize)
    module = ranks.module(build, lambda model: model.compile(optimize(), "mse"))
    replicas, _ = ranks.run(module, lookup_models.examples(), 2, SIZE)
    for replica in replicas:
        trained = replica.model.get_weights()
        assert weights.difference(trained, expected.get_weights()) <= weights.TOLERANCE


BATCH = lookups.Lookup(of_batch=True)
SOURCES: dict[str, list[tuple[lookups.Lookup, ...]]] = {
    "static": [(BATCH,), (lookups.Lookup(of_batch=False, rows=(0, 1, 2, 3, 4, 5)),)],
    "repeated": [(BATCH,), (lookups.Lookup(of_batch=False, rows=(0, 1, 1, 2, 2, 2)),)],
    "measured": [(BATCH,), (lookups.Lookup(of_batch=False),)],
    "broadcast": [(BATCH,), (BATCH,)],
    "tied": [(BATCH, lookups.Lookup(of_batch=False, rows=(0, 1, 2)))],
}
"""What names the rows of each table of a model, whose texts are of any length."""


@pytest.mark.parametrize("name", lookup_models.ALL)
def test_what_names_the_rows_of_a_table_follows_from_the_graph(name: str) -> None:
    model = lookup_models.ALL[name]()
    sources: list[tuple[lookups.Lookup, ...]] = []

    @tf.function(autograph=False)
    def step(tokens: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(model(tokens))
        tables = [
            table.value for table in model.trainable_variables if table.path.endswith("embeddings")
        ]
        sources.extend(lookups.find_lookups(gradient) for gradient in tape.gradient(total, tables))
        return total

    step.get_concrete_function(tf.TensorSpec((None, None), tf.int64))
    assert sources == SOURCES[name]


COUNTS: dict[str, tuple[int | None, Callable[[Any], Any]]] = {
    "all": (6, lambda ids: ids),
    "in one row": (6, lambda ids: tf.reshape(ids, [-1])),
    "some of each": (4, lambda ids: ids[:, :2]),
    "a column": (2, lambda ids: ids[:, 1]),
    "one number of each": (1, lambda ids: ids[:, 1, 0]),
    "columns of some of each": (1, lambda ids: ids[:, :2][:, 0][:, 1]),
    "every second example": (None, lambda ids: ids[::2]),
    "all but the first": (None, lambda ids: ids[1:]),
    "up to the third": (None, lambda ids: ids[:3]),
    "backwards": (None, lambda ids: ids[::-1]),
    "with an axis before": (None, lambda ids: ids[tf.newaxis]),
    "the last": (None, lambda ids: ids[-1]),
    "what differs": (None, lambda ids: tf.unique(tf.reshape(ids, [-1]))[0]),
    "what is not 0": (None, lambda ids: tf.boolean_mask(ids, ids > 0)),
}
"""Of how many rows for each example the graph tells, of ids [None, 3, 2]."""


@pytest.mark.parametrize("name", COUNTS)
def test_how_many_rows_an_example_names_follows_from_the_graph(name: str) -> None:
    expected, take = COUNTS[name]
    table = tf.Variable(tf.zeros((5, 2)))
    sources: list[lookups.Lookup] = []

    @tf.function(autograph=False)
    def step(ids: tf.Tensor) -> None:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(tf.gather(table, take(ids)))
        sources.extend(lookups.find_lookups(tape.gradient(total, table)))

    step.get_concrete_function(tf.TensorSpec((None, 3, 2), tf.int32))
    (lookup,) = sources
    assert (lookup.of_batch, lookup.rows_per_example) == (True, expected)
