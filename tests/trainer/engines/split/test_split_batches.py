"""Models in which dimension 0 of a tensor is not the batch: right on every mesh, or refused."""

import functools
import types
from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf

from testing.trainer import (
    batch_models,
    cases,
    cases_split,
    reference,
    split_models,
    split_ranks,
    weights,
)
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import added_losses, example_independence, recording
from tfparallel_trainer.engines.split.planning import model_costs

pytestmark = split_models.MARKS

BATCH, STEPS = 6, 3
LAYERS, OPS = keras.layers, keras.ops
MESHES = {
    "data and stage": (shape.MeshShape(data=2, stage=2), 2),
    "spatial": (shape.MeshShape(spatial=2), 1),
    "stage and tensor": (shape.MeshShape(stage=2, tensor=2), 1),
}
WITHOUT_ROWS = {"rows", "time first", "table", "waves"}
"""Models that have nothing that rows of images divide."""


def functions(name: str) -> dict[str, Any]:
    build = batch_models.ALL[name]
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(keras.optimizers.Adam(0.05), "mse"),
        "training_data": lambda: batch_models.examples(build()),
    }


@functools.cache
def expected(name: str) -> tuple[list[Any], list[float]]:
    return reference.train(types.SimpleNamespace(**functions(name)), STEPS, BATCH, cases.SEED)


@pytest.mark.parametrize(
    ("name", "mesh"),
    [
        (name, mesh)
        for name in batch_models.ALL
        for mesh in MESHES
        if mesh != "spatial" or name not in WITHOUT_ROWS
    ],
)
def test_what_is_no_batch_is_divided_as_what_it_is(name: str, mesh: str) -> None:
    degrees, microbatches = MESHES[mesh]
    weights_of_one, losses_of_one = expected(name)
    losses, difference = cases_split.train_on_mesh(
        functions(name), degrees, microbatches, BATCH, weights_of_one, STEPS
    )
    assert losses == pytest.approx(losses_of_one, rel=1e-10)
    assert difference <= weights.TOLERANCE


def recorded(function: Callable[[Any], Any], dims: tuple[int | None, ...] = (4, 3)) -> Any:
    first = keras.Input(dims)
    return recording.record(keras.Model(first, function(LAYERS.Dense(3)(first))))


@pytest.mark.parametrize(
    ("function", "batch", "rows", "sized"),
    [
        (lambda x: x, 0, 1, (5, 4, 3)),
        (lambda x: OPS.reshape(x, (-1, 3)), 0, 4, (20, 3)),
        (lambda x: OPS.transpose(x, (1, 0, 2)), 1, 1, (4, 5, 3)),
        (lambda x: LAYERS.TimeDistributed(LAYERS.Dense(2))(x), 0, 1, (5, 4, 2)),
        (lambda x: batch_models.Table()(x), None, 1, (1, 4, 3)),
        (lambda x: batch_models.Waves()(x), None, 1, (4, 3)),
    ],
)
def test_a_tensor_knows_its_relation_to_the_batch(
    function: Callable[[Any], Any], batch: int | None, rows: int, sized: tuple[int, ...]
) -> None:
    model = recorded(function)
    tensor = model.tensors[model.outputs[0].tensor]
    assert (tensor.batch, tensor.rows, tensor.sized(5)) == (batch, rows, sized)


def test_examples_of_an_unknown_length_stay_unknown() -> None:
    model = recorded(lambda x: x, (None, 3))
    assert model.tensors[model.outputs[0].tensor].sized(5) == (5, None, 3)


def test_a_nested_model_is_recorded_on_what_its_caller_gives_it() -> None:
    inner = keras.Sequential([keras.Input((3,)), LAYERS.Dense(2), LAYERS.Dense(2)])
    model = recorded(lambda x: OPS.reshape(inner(OPS.reshape(x, (-1, 3))), (-1, 4, 2)))
    assert [model.tensors[node.outputs[0]].rows for node in model.nodes] == [1, 4, 4, 4, 1]


def test_the_planner_counts_the_rows_that_an_example_has() -> None:
    plain = recorded(lambda x: LAYERS.Dense(5, "gelu")(LAYERS.Dense(5)(x)))
    merged = recorded(lambda x: LAYERS.Dense(5, "gelu")(LAYERS.Dense(5)(OPS.reshape(x, (-1, 3)))))
    (*_, first), (*_, second) = (
        model_costs.estimate_costs(model, dict.fromkeys(model.variables, 0)).nodes
        for model in (plain, merged)
    )
    assert first == second


class CountingLayer(keras.layers.Layer):
    """Gives a number of all examples besides."""

    def call(self, x: Any) -> Any:
        return x, OPS.mean(x)


class Centered(keras.layers.Layer):
    """Takes the mean of all examples away: always, or while it trains."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.always = always

    def call(self, x: Any, training: bool = False) -> Any:
        return x - OPS.mean(x, axis=0, keepdims=True) if training or self.always else x


class Numbered(keras.layers.Layer):
    """Adds the place of an example in its batch."""

    def call(self, x: Any) -> Any:
        return x + OPS.reshape(OPS.arange(OPS.shape(x)[0], dtype=x.dtype), (-1, 1, 1))


class Sampling(keras.layers.Layer):
    """Adds what it draws, also when it does not train; and a mean of all examples, if asked."""

    def __init__(self, mixes: bool) -> None:
        super().__init__()
        self.seeds = keras.random.SeedGenerator(3)
        self.mixes = mixes

    def call(self, x: Any) -> Any:
        drawn = x + keras.random.normal(OPS.shape(x), dtype=x.dtype, seed=self.seeds)
        return drawn - OPS.mean(x) if self.mixes else drawn


class Block(keras.layers.Layer):
    """Computes each example by itself, but for statistics and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = [LAYERS.Dense(3), LAYERS.BatchNormalization(), LAYERS.Dropout(0.5)]

    def build(self, input_shape: Any) -> None:
        for layer in self.inner:
            layer.build(input_shape)

    def call(self, x: Any, training: bool = False) -> Any:
        dense, normalized, dropped = self.inner
        return dropped(normalized(dense(x), training=training), training=training)


class CenteredBlock(Block):
    """Takes the mean of all examples away while it trains, and holds Keras' own layer too."""

    def call(self, x: Any, training: bool = False) -> Any:
        x = super().call(x, training=training)
        return x - OPS.mean(x, 0) if training else x


def append_copy(x: Any) -> Any:
    """Give the batch twice, one copy behind the other."""
    return LAYERS.Concatenate(axis=0)([x, x * 2.0])


def attended(x: Any) -> Any:
    return LAYERS.MultiHeadAttention(2, 2)(x, x)


MIXING: dict[str, Callable[[Any], Any]] = {
    "mean": lambda x: x - OPS.mean(x, axis=0, keepdims=True),
    "scores": lambda x: OPS.matmul(x[:, 0], OPS.transpose(x[:, 0])),
    "softmax": lambda x: OPS.softmax(x, axis=0),
    "flip": lambda x: OPS.flip(x, axis=0),
    "roll": lambda x: OPS.roll(x, 1),
    "reversed": lambda x: x[::-1, :],
    "first": lambda x: x - x[:1, :],
    "time first": lambda x: OPS.cumsum(OPS.transpose(x, (1, 0, 2)), axis=1),
    "used mean": lambda x: x - CountingLayer()(x)[1],
    "merged": lambda x: OPS.softmax(OPS.reshape(x, (-1, 3)), axis=0),
    "own layer": lambda x: Centered(always=True)(x),
    "own layer in training": lambda x: Centered(always=False)(x),
    "own block in training": lambda x: CenteredBlock()(x),
    "own function": lambda x: LAYERS.Lambda(lambda tensor: tensor / OPS.max(tensor))(x),
    "own layer that draws": lambda x: Sampling(mixes=True)(x),
    "place": lambda x: Numbered()(x),
    "number": lambda x: LAYERS.Lambda(
        lambda tensor: tensor / OPS.cast(OPS.shape(tensor)[0], "float64")
    )(x),
    "einsum": lambda x: OPS.einsum("bti,cti->bti", x, x),
    "attention over the batch": lambda x: attended(OPS.transpose(x, (1, 0, 2))),
    "images mixed in training": lambda x: LAYERS.MixUp(9.0, seed=3)(OPS.reshape(x, (-1, 4, 3, 1))),
    "pairs of copies": lambda x: OPS.reshape(append_copy(x), (-1, 2, 4, 3)),
    "two orders": lambda x: append_copy(x) + OPS.reshape(OPS.repeat(x, 2, axis=1), (-1, 4, 3)),
}
SEPARATE: dict[str, Callable[[Any], Any]] = {
    "softmax": lambda x: OPS.softmax(x, axis=-1),
    "flip": lambda x: OPS.flip(x, axis=1),
    "part": lambda x: x[:, ::2],
    "statistics": lambda x: LAYERS.BatchNormalization()(x),
    "table": lambda x: x + batch_models.Table()(x),
    "joined": lambda x: LAYERS.Concatenate(axis=0)([x, x]),
    "unused mean": lambda x: CountingLayer()(x)[0],
    "own block": lambda x: Block()(x),
    "own layer that draws": lambda x: Sampling(mixes=False)(x),
    "own function": lambda x: LAYERS.Lambda(
        lambda tensor: tensor / OPS.max(tensor, 1, keepdims=True)
    )(x),
    "attention": attended,
    "copies": lambda x: OPS.sum(
        OPS.reshape(append_copy(LAYERS.Dense(3)(x)), (2, -1, 4, 3)), axis=0
    ),
    "dense time first": lambda x: LAYERS.Dense(3)(OPS.transpose(x, (1, 0, 2))),
    "time first": lambda x: OPS.cumsum(OPS.transpose(x, (1, 0, 2)), axis=0),
}


@pytest.mark.parametrize("name", MIXING)
def test_a_model_that_mixes_examples_is_refused(name: str) -> None:
    with pytest.raises(errors.UserCodeError, match=r"computes with all examples of a batch"):
        example_independence.check(recorded(MIXING[name]))


@pytest.mark.parametrize("name", SEPARATE)
def test_a_model_that_computes_each_example_by_itself_is_not(name: str) -> None:
    example_independence.check(recorded(SEPARATE[name]))


def test_a_layer_that_not_every_process_may_hold_is_not_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Weighted(Centered):
        def build(self, input_shape: Any) -> None:
            self.factors = self.add_weight(shape=input_shape[1:])

    model = recorded(lambda x: Weighted(always=True)(x))
    with pytest.raises(errors.UserCodeError, match=r"computes with all examples"):
        example_independence.check(model)
    monkeypatch.setattr(example_independence, "_MOST_WEIGHTS", 11)
    example_independence.check(model)


class Adds(keras.layers.Layer):
    """Adds what a function makes of its inputs, and of a number for each feature, to the loss."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.function = function

    def build(self, input_shape: Any) -> None:
        self.factors = self.add_weight(shape=input_shape[1:], initializer="ones")

    def call(self, x: Any) -> Any:
        self.add_loss(self.function(x, self.factors))
        return x


ADDED: dict[str, Callable[[Any, Any], Any]] = {
    "mean": lambda x, factors: OPS.mean(x**2 * factors),
    "random": lambda x, _: keras.random.normal(()) * OPS.mean(x),
}


@pytest.mark.parametrize("name", ADDED)
def test_a_layer_may_add_a_mean_over_examples_to_the_loss(name: str) -> None:
    added_losses.check(recorded(lambda x: Adds(ADDED[name])(x)))


def test_a_layer_that_adds_no_mean_over_examples_to_the_loss_is_refused() -> None:
    product = Adds(lambda x, factors: OPS.mean(OPS.mean(x, 0) * OPS.mean(x * factors, 0)))
    with pytest.raises(errors.UserCodeError, match=r"What adds.* adds by add_loss is no mean"):
        added_losses.check(recorded(lambda x: product(x)))


class AddsInTraining(keras.layers.Layer):
    """Adds the sum of what it keeps to the loss while it trains."""

    def __init__(self) -> None:
        super().__init__(name="activity")
        self.dropout = LAYERS.Dropout(0.5, seed=3)

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(OPS.sum(self.dropout(x, training=True) ** 2))
        return x


def test_what_a_layer_adds_only_in_training_is_tried_in_training() -> None:
    with pytest.raises(errors.UserCodeError, match=r"What activity adds by add_loss is no mean"):
        added_losses.check(recorded(lambda x: AddsInTraining()(x)))


@pytest.mark.parametrize("regularizer", [keras.regularizers.L1L2(), keras.regularizers.L2(2.0)])
def test_a_regularizer_of_each_example_is_a_mean(regularizer: Any) -> None:
    added_losses.check(recorded(LAYERS.Dense(3, activity_regularizer=regularizer)))


def test_a_regularizer_that_mixes_examples_is_refused() -> None:
    def mixes(y: Any) -> Any:
        return OPS.sum(OPS.mean(y, 0) ** 2)

    layer = LAYERS.Dense(3, activity_regularizer=mixes, name="mixed")
    with pytest.raises(errors.UserCodeError, match=r"What mixed adds by add_loss is no mean"):
        added_losses.check(recorded(layer))


def test_the_refusal_is_for_batches_that_the_mesh_divides() -> None:
    build = {
        **functions("rows"),
        "build_model": lambda: keras.Sequential(
            [keras.Input((batch_models.SIZE,)), LAYERS.Dense(3), LAYERS.UnitNormalization(axis=0)]
        ),
    }
    with pytest.raises(errors.UserCodeError, match=r"unit_normalization computes with all"):
        split_ranks.prepare_new(build, shape.MeshShape(stage=2), 2)
    split_ranks.prepare_new(build, shape.MeshShape(stage=2), 1)


def test_a_layer_that_no_sample_input_suits_is_refused() -> None:
    def checked(x: Any) -> Any:
        with tf.control_dependencies([tf.debugging.assert_greater(x, 7.0)]):
            return tf.identity(x)

    layer = LAYERS.Lambda(checked, output_shape=(4, 3), name="checked")
    with pytest.raises(errors.UserCodeError, match=r"checked cannot be tried .*mesh.microbatches"):
        example_independence.check(recorded(layer))


def test_a_loss_that_needs_the_whole_batch_is_refused_where_the_mesh_divides_it() -> None:
    def contrastive(y: Any, y_pred: Any) -> Any:
        return OPS.mean(OPS.square(OPS.matmul(y_pred, OPS.transpose(y_pred)) - OPS.mean(y)))

    whole = {
        **functions("rows"),
        "compile_model": lambda model: model.compile("sgd", contrastive),
    }
    _, examples, step = split_ranks.prepare_new(whole, shape.MeshShape(stage=2), 1, batch=BATCH)
    step(0, next(iter(examples.epoch(0, 0))), frozenset())
    _, examples, step = split_ranks.prepare_new(whole, shape.MeshShape(stage=2), 2, batch=BATCH)
    with pytest.raises(errors.UserCodeError, match=r"^The loss .* is no mean over"):
        step(0, next(iter(examples.epoch(0, 0))), frozenset())


class Liar(keras.layers.Layer):
    """Says that it gives what it takes, and gives less."""

    def call(self, x: Any) -> Any:
        return x[:1]

    def compute_output_shape(self, shape_: Any) -> Any:
        return shape_


def test_a_shape_that_a_layer_breaks_is_reported_before_the_first_step() -> None:
    def build() -> Any:
        first = keras.Input((3,))
        return keras.Model(first, LAYERS.Dense(1)(Liar()(LAYERS.Dense(3)(first))))

    whole = {
        **functions("rows"),
        "build_model": build,
        "training_data": lambda: batch_models.examples(build()),
    }
    with pytest.raises(errors.UserCodeError, match=r"liar gives .*compute_output_shape"):
        split_ranks.prepare_new(whole, shape.MeshShape(stage=3), 2, batch=BATCH)
