"""Rows that the examples name travel with the sums of a step, where each names as many."""

import collections
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import ranks, weights
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import arrays, batch_division
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import lookups

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras

N, LENGTH, TOKENS, BATCH, COUNT = 10, 3, 7, 4, 2
"""The batches have 4, 4 and 2 examples; most rows are named several times."""

RANDOM = np.random.default_rng(0)
IDS = RANDOM.integers(0, TOKENS, (N, LENGTH))
TARGETS = RANDOM.normal(size=(N, 1))


class Table(keras.layers.Layer):
    """A table of which `read` takes rows."""

    def __init__(self, read: Callable[[Any, Any], Any], tokens: int, **options: Any) -> None:
        super().__init__(**options)
        self.table = keras.layers.Embedding(tokens, 5, dtype=self.dtype_policy)
        self.read = read

    def build(self, shape: Any) -> None:
        self.table.build(None)

    def call(self, ids: Any) -> Any:
        return keras.ops.mean(self.read(self.table, ids), 1)


def same_ids(ids: Any) -> Any:
    """The ids, by a way that does not show in the graph that all examples have as many."""
    return tf.gather(ids, tf.where(ids[:, 0] >= 0)[:, 0])


READS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "a row for each id": (1, lambda table, ids: table(ids)),
    "two look-ups": (1, lambda table, ids: table(ids[:, :2]) * table(ids[:, 1:])),
    "a column": (1, lambda table, ids: table(ids[:, 1])[:, None]),
    "with the whole table": (
        1,
        lambda table, ids: table(ids) @ keras.ops.transpose(table.embeddings),
    ),
    "as many as the data tell": (4, lambda table, ids: table(same_ids(ids))),
}
"""How many collectives a step has, and the look-ups."""

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: keras.optimizers.SGD(0.1),
    "adam": lambda: keras.optimizers.Adam(0.05, clipnorm=0.2),
    "decay and averages": lambda: keras.optimizers.SGD(0.1, weight_decay=0.01, use_ema=True),
    "adagrad, accumulated": lambda: keras.optimizers.Adagrad(0.05, gradient_accumulation_steps=2),
}


def model(
    read: Callable[[Any, Any], Any], dtype: str | None = None, tokens: int = TOKENS
) -> keras.Model:
    ids = keras.Input((LENGTH,), dtype="int64")
    hidden = keras.layers.Dense(4, "tanh")(Table(read, tokens, dtype=dtype)(ids))
    return keras.Model(ids, keras.layers.Dense(1)(hidden))


def train(
    module: Any, source: Any, batch_size: int, say: Callable[[str], None] | None = None
) -> tuple[list[Any], Any]:
    """Train replicas once over a source; gives the replicas and the step."""
    replicas = ranks.build(module, (IDS, TARGETS, None), COUNT)
    step = mesh_steps.MeshTrainStep(module, replicas, source.spec, batch_size, say=say)
    for number, batch in enumerate(source.epoch(0, 0)):
        step(number, batch, frozenset())
    return replicas, step


def require_one_process(module: Any, replicas: list[Any], sizes: list[int]) -> None:
    """Compare weights with those that Keras has after batches of these sizes."""
    alone = ranks.build(module, (IDS, TARGETS, None), 1)[0].model
    for end, size in zip(np.cumsum(sizes), sizes, strict=True):
        alone.train_on_batch(IDS[end - size : end], TARGETS[end - size : end])
    for replica in replicas:
        assert weights.difference(replica.model.get_weights(), alone.get_weights()) <= 1e-10


def collectives_of(graph: Any) -> int:
    counts = collections.Counter(operation.type for operation in graph.get_operations())
    return sum(count for kind, count in counts.items() if kind.startswith("Collective"))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", READS)
def test_rows_travel_with_the_sums_if_each_example_names_as_many(name: str) -> None:
    count, read = READS[name]
    module = ranks.module(
        lambda: model(read), lambda model: model.compile(keras.optimizers.SGD(0.1), "mse")
    )
    source = ranks.feed_of((IDS, TARGETS, None), COUNT, BATCH)
    replicas, step = train(module, source, BATCH)
    require_one_process(module, replicas, [4, 4, 2])
    assert collectives_of(step._function((True, True), False).graph) == COUNT * count


@pytest.mark.usefixtures("float64")
def test_many_bytes_are_added_up_in_a_ring_and_gathered_for_themselves(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collectives, "GATHERED_BYTES", 0)
    module = ranks.module(
        lambda: model(READS["two look-ups"][1]),
        lambda model: model.compile(keras.optimizers.Adagrad(0.1), "mse"),
    )
    source = ranks.feed_of((IDS, TARGETS, None), COUNT, BATCH)
    replicas, step = train(module, source, BATCH)
    require_one_process(module, replicas, [4, 4, 2])
    assert collectives_of(step._function((True, True), False).graph) == COUNT * 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_get_the_mentions_that_one_process_has(name: str) -> None:
    module = ranks.module(
        lambda: model(READS["two look-ups"][1]),
        lambda model: model.compile(OPTIMIZERS[name](), "mse"),
    )
    source = ranks.feed_of((IDS, TARGETS, None), COUNT, 3)
    replicas, _ = train(module, source, 3)
    require_one_process(module, replicas, [3, 3, 3, 1])


@pytest.mark.usefixtures("float64")
def test_a_batch_of_more_examples_than_the_job_asks_for_is_trained_like_any_other() -> None:
    module = ranks.module(
        lambda: model(READS["a row for each id"][1]),
        lambda model: model.compile(keras.optimizers.SGD(0.1), "mse"),
    )
    sizes = [4, 5, 1]
    division = batch_division.BatchSharding(batch_size=BATCH, ranks=COUNT, local_ranks=(0, 1))
    ends = np.cumsum(sizes)
    batches = [
        (IDS[end - size : end], TARGETS[end - size : end], None)
        for end, size in zip(ends, sizes, strict=True)
    ]

    class Source(arrays.ArraySource):
        def epoch(self, number: int, start: int) -> Any:
            return division.cut(batches, start)

    replicas, _ = train(module, Source((IDS, TARGETS, None), division, None), BATCH)
    require_one_process(module, replicas, sizes)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("tokens", "optimizer", "is_whole"),
    [
        (7, keras.optimizers.SGD(0.1), True),
        (7, keras.optimizers.SGD(0.1, momentum=0.9, nesterov=True), True),
        (7, keras.optimizers.Lion(0.01), True),
        (7, keras.optimizers.Adagrad(0.1, gradient_accumulation_steps=2), True),
        (7, keras.optimizers.SGD(0.1, clipnorm=0.1), False),
        (7, keras.optimizers.Adagrad(0.1), False),
        (70, keras.optimizers.SGD(0.1), False),
    ],
)
@pytest.mark.parametrize(
    "read", repeats.some(["a row for each id", "two look-ups"], ["two look-ups"])
)
def test_a_small_table_is_added_up_as_a_whole_if_its_optimizer_takes_sums(
    read: str, tokens: int, optimizer: Any, is_whole: bool
) -> None:
    configuration = optimizer.get_config()

    def compile_model(model: Any) -> None:
        model.compile(type(optimizer).from_config(configuration), "mse")

    module = ranks.module(lambda: model(READS[read][1], tokens=tokens), compile_model)
    source = ranks.feed_of((IDS, TARGETS, None), COUNT, 3)
    sentences: list[str] = []
    replicas, _ = train(module, source, 3, sentences.append)
    require_one_process(module, replicas, [3, 3, 3, 1])
    path = next(weight.path for weight in replicas[0].model.weights if weight.shape[0] == tokens)
    of_table = f"ranks add up the whole gradient of {path}: that is fewer bytes"
    assert [sentence.startswith(of_table) for sentence in sentences] == [True] * is_whole


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("repeats_rows", [True, False])
def test_ranks_that_count_rows_send_each_once(repeats_rows: bool) -> None:
    values = tf.constant([[1.0], [2.0], [4.0]])
    rows = tf.constant([5, 5, 3] if repeats_rows else [5, 4, 3], tf.int64)
    sent: list[Any] = []

    class Group:
        """Gathers what this rank sends."""

        def gather_rows(self, tensors: list[Any]) -> list[Any]:
            sent.append(tensors)
            return tensors

    slices = lookups.Slices(lookups.Lookup(of_batch=True), rows, values)
    gathered = lookups.gather(Group(), slices, adds_mentions=True)  # type: ignore[arg-type]
    expected = {5: 3.0, 3: 4.0} if repeats_rows else {5: 1.0, 4: 2.0, 3: 4.0}
    assert dict(zip(*(tensor.numpy().flatten() for tensor in sent[0]), strict=True)) == expected
    assert len(gathered.indices) == len(expected)


@pytest.mark.parametrize(
    "dtype", repeats.some(["float16", "bfloat16", "mixed_float16"], ["float16"])
)
def test_rows_of_two_bytes_travel_too(dtype: str) -> None:
    read = READS["a row for each id"][1]
    module = ranks.module(
        lambda: model(read, dtype), lambda model: model.compile(keras.optimizers.SGD(0.1), "mse")
    )
    source = ranks.feed_of((IDS, TARGETS, None), COUNT, BATCH)
    replicas, step = train(module, source, BATCH)
    alone = ranks.build(module, (IDS, TARGETS, None), 1)[0].model
    for first in range(0, N, BATCH):
        alone.train_on_batch(IDS[first : first + BATCH], TARGETS[first : first + BATCH])
    first_weights, other_weights = (replica.model.get_weights() for replica in replicas)
    for array, other, expected in zip(
        first_weights, other_weights, alone.get_weights(), strict=True
    ):
        np.testing.assert_array_equal(array, other)
        np.testing.assert_allclose(array.astype("float32"), expected.astype("float32"), atol=0.02)
    assert collectives_of(step._function((True, True), False).graph) == COUNT
