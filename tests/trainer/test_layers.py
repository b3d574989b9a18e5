"""The sharded embedding is Keras' embedding with its table in several weights."""

import pathlib
import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import launch, reference, server_jobs, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import layers
from tfparallel_trainer.contract import outputs

pytestmark = pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras

ROWS, COLUMNS = 11, 3


def models(
    shards: int | None, mask_zero: bool = False, regularizer: str | None = None
) -> tuple[Any, Any, Any]:
    """The sharded layer in a model, Keras' in an equal one, and ids that leave out some rows."""
    built = []
    more: dict[str, Any] = {"mask_zero": mask_zero, "embeddings_regularizer": regularizer}
    for first in (
        layers.ShardedEmbedding(ROWS, COLUMNS, shards, **more),
        keras.layers.Embedding(ROWS, COLUMNS, **more),
    ):
        keras.utils.set_random_seed(5)
        model = keras.Sequential(
            [
                keras.Input((4,), dtype="int32"),
                first,
                keras.layers.SimpleRNN(5, unroll=True),  # tells positions apart, and masks
                keras.layers.Dense(2),
            ]
        )
        model.compile(keras.optimizers.Adam(0.1), "mse")
        model.optimizer.build(model.trainable_variables)
        built.append(model)
    sharded, other = built
    sharded.layers[0].assign_table(other.layers[0].get_weights()[0])
    for layer, two in zip(sharded.layers[1:], other.layers[1:], strict=True):
        layer.set_weights(two.get_weights())
    ids = np.random.default_rng(2).choice([0, 1, 2, 5, 6, 7, 10], size=(6, 4))
    return sharded, other, ids


@pytest.mark.parametrize("shards", repeats.some([1, 2, 4, ROWS, None], [1, 4, None]))
@pytest.mark.parametrize("mask_zero", [False, True])
def test_it_equals_the_embedding_of_keras(shards: int | None, mask_zero: bool) -> None:
    with reference.floatx():
        keras.config.set_floatx("float64")
        sharded, other, ids = models(shards, mask_zero, "l2")
        y = np.random.default_rng(3).normal(size=(6, 2))
        losses = []
        for model in (sharded, other):
            for _ in range(3):
                with tf.GradientTape() as tape:
                    loss = model.compute_loss(ids, y, model(ids, training=True))
                gradients = tape.gradient(loss, model.trainable_variables)
                model.optimizer.apply(gradients, model.trainable_variables)
                losses.append(float(loss))
        assert losses[:3] == pytest.approx(losses[3:], abs=1e-12)
        table, expected = sharded.layers[0].table(), other.layers[0].get_weights()[0]
        assert np.abs(table - expected).max() <= 1e-12
        assert sharded(ids).numpy() == pytest.approx(other(ids).numpy(), abs=1e-12)
        assert sharded.layers[0].shards == (shards or 8)
        assert sharded.layers[0].compute_output_shape((None, 4)) == (None, 4, COLUMNS)


def test_only_used_rows_are_read_and_have_gradients() -> None:
    sharded, _, ids = models(4)

    @tf.function(autograph=False)
    def run(batch: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(sharded(batch))
        return tape.gradient(total, sharded.trainable_variables[:4])

    traced = run.get_concrete_function(tf.TensorSpec((None, 4), tf.int32))
    inside = {id(outside): placeholder for outside, placeholder in traced.graph.captures}
    for part in sharded.trainable_variables[:4]:
        readers = {consumer.type for consumer in inside[id(part.value.handle)].consumers()}
        assert "ResourceGather" in readers
        assert readers <= {"ResourceGather", "VariableShape"}
    gradients = traced(tf.constant(ids, tf.int32))
    assert all(isinstance(gradient, tf.IndexedSlices) for gradient in gradients)
    for shard, gradient in enumerate(gradients):
        expected = [number // 4 for number in ids.flatten() if number % 4 == shard]
        assert gradient.indices.numpy().tolist() == expected


def test_shards_start_with_different_values_and_the_same_for_a_seed() -> None:
    tables: list[list[Any]] = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        tables.append([])
        for initializer in ("uniform", keras.initializers.RandomNormal(seed=3), "ones"):
            layer = layers.ShardedEmbedding(8, 4, 4, embeddings_initializer=initializer)
            layer(np.zeros((1, 1), "int32"))
            tables[-1].append(layer.table())
    for table, two in zip(*tables, strict=True):
        assert np.array_equal(table, two)
    assert [len(np.unique(table, axis=0)) for table in tables[0]] == [8, 8, 1]


def test_sizes_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="shards is 12: give 1 to 11"):
        layers.ShardedEmbedding(ROWS, COLUMNS, 12)
    with pytest.raises(ValueError, match="output_dim is 0"):
        layers.ShardedEmbedding(ROWS, 0)
    layer = layers.ShardedEmbedding(ROWS, COLUMNS)
    with pytest.raises(tf.errors.InvalidArgumentError):
        layer(np.array([[ROWS]]))


def test_mixed_precision_computes_in_the_policys_type() -> None:
    layer = layers.ShardedEmbedding(ROWS, COLUMNS, 2, dtype="mixed_bfloat16")
    assert layer(np.array([[1.0, 2.0]])).dtype == tf.bfloat16
    assert layer.table().dtype == np.float32


def test_a_saved_model_is_loaded(tmp_path: pathlib.Path) -> None:
    sharded, _, ids = models(3, True)
    path = tmp_path / "model.keras"
    sharded.save(path)
    again = keras.models.load_model(path)
    assert np.array_equal(again(ids).numpy(), sharded(ids).numpy())
    assert again.layers[0].get_config() == sharded.layers[0].get_config()


def test_the_example_of_the_page_is_a_model() -> None:
    page = (launch.REPOSITORY / "docs" / "how-to/parameter-servers.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(code, "parameter-servers.md", "exec"), names)  # noqa: S102
    model = names["build_model"]()
    ids = np.array([[0, 999_999]])
    assert model(ids).shape == (1, 1)
    assert [weight.shape[0] for weight in model.layers[0].weights] == [250_000] * 4


def test_shards_lie_on_different_servers_and_any_number_resumes(runs: trainings.Runs) -> None:
    job: dict[str, Any] = {"globalBatchSize": 8, "seed": 3, "checkpoint": server_jobs.CHECKPOINT}
    first = runs.finish_servers("sharded.py", workers=1, servers=2, steps=6, **job)
    for number in range(4):
        device = f"/job:ps/replica:0/task:{number % 2}/"
        assert f"shard_{number} lies at {device}" in first.chief.output
    with reference.floatx():
        expected, losses = reference.train(reference.load("sharded"), 12, 8, 3)
    second = runs.finish_servers("sharded.py", workers=1, servers=1, steps=12, **job)
    assert "resuming after step 6" in second.chief.output
    with reference.floatx():
        model = keras.models.load_model(second.output / outputs.MODEL)
    assert weights.difference(model.get_weights(), expected) <= 1e-12
    # One worker makes the steps of one process.
    metrics = second.summary.metrics
    assert float(metrics["loss"]) == pytest.approx(np.mean(losses[10:]), abs=1e-10)
    assert metrics["staleness_max"] == 0
