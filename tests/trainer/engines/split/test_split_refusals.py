"""Sentences on models that cannot be divided name what to change."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import split_group, split_models, split_ranks
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.engines.split.planning import shardings

pytestmark = split_models.MARKS

STAGES, TENSOR = shape.MeshShape(stage=2), shape.MeshShape(tensor=2)


def adapted() -> Any:
    """Keras' layer says (None, 1, 5) of what it gives, and gives (None, 5)."""
    vectorization = keras.layers.TextVectorization(max_tokens=6, output_mode="tf_idf", name="words")
    vectorization.adapt(["a b c", "a d"])
    inputs = keras.Input((1,), dtype="string")
    hidden = keras.layers.Dense(4, "tanh")(vectorization(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(hidden))


class Misleading(keras.layers.Layer):
    """Says that it adds a dimension."""

    def call(self, inputs: Any) -> Any:
        return inputs * 2.0

    def compute_output_shape(self, dims: Any) -> Any:
        return (dims[0], 1, *dims[1:])


def misleading() -> Any:
    inputs = keras.Input((3,))
    x = keras.layers.Dense(4)(Misleading(name="misleading")(inputs))
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def misleading_at_the_end() -> Any:
    inputs = keras.Input((3,))
    return keras.Model(inputs, Misleading(name="misleading")(keras.layers.Dense(2)(inputs)))


def examples(
    build: Callable[[], Any], loss: Any = "mse", places: tuple[int, ...] = ()
) -> dict[str, Any]:
    random = np.random.default_rng(0)
    texts = np.array([["a b"], ["c d"], ["a a"], ["b"]])
    x = texts if build is adapted else random.normal(size=(4, 3))
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(keras.optimizers.SGD(0.1), loss),
        "training_data": lambda: (x, random.normal(size=(4, *places, 2))),
    }


@pytest.mark.parametrize("mesh", [STAGES, TENSOR], ids=["stages", "tensor"])
@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (adapted, r"words gives .* \(None, 5\), and Keras was told \(None, 1, 5\): compute that"),
        (misleading, r"misleading gives .* \(None, 3\), .* mend its compute_output_shape"),
    ],
    ids=["Keras", "user"],
)
def test_the_layer_that_misleads_about_its_shape_is_named(
    build: Callable[[], Any], pattern: str, mesh: shape.MeshShape
) -> None:
    as_the_layer_says = examples(build, places=(1,))
    _, data, step = split_ranks.prepare_new(as_the_layer_says, mesh, 1, batch=4)
    with pytest.raises(errors.UserCodeError, match=pattern):
        step(0, next(data.epoch(0, 0)), frozenset())


def with_matrices(y: Any, y_pred: Any) -> Any:
    return keras.ops.sum(keras.ops.matmul(y[:, None, :], y_pred[:, :, None]), (1, 2))


@pytest.mark.parametrize(
    ("build", "loss"),
    [(adapted, "mse"), (misleading, "mse"), (misleading_at_the_end, with_matrices)],
    ids=["Keras", "user", "loss-of-the-user"],
)
def test_a_layer_that_misleads_is_named_where_labels_fit_what_it_gives(
    build: Callable[[], Any], loss: Any
) -> None:
    """No advice on labels, which are right."""
    pattern = r"(words|misleading) gives .*, and Keras was told"
    with pytest.raises(errors.UserCodeError, match=pattern):
        split_ranks.prepare_new(examples(build, loss), STAGES, 1, batch=4)


def test_a_loss_that_raises_is_told_from_a_fault_of_the_trainer() -> None:
    def build() -> Any:
        layers = [keras.layers.Dense(4), keras.layers.Dense(2)]
        return keras.Sequential([keras.Input((3,)), *layers])

    def unfit(y: Any, y_pred: Any) -> Any:
        raise LookupError("no such class")

    pattern = "computing the loss of the first training example raised LookupError: no such class"
    with pytest.raises(errors.UserCodeError, match=pattern):
        split_ranks.prepare_new(examples(build, unfit), STAGES, 1, batch=4)


@pytest.mark.parametrize(
    "wrap", [lambda layer: layer, keras.layers.Bidirectional], ids=["alone", "wrapped"]
)
def test_a_layer_whose_state_belongs_to_places_of_a_batch_is_named(
    wrap: Callable[[Any], Any],
) -> None:
    def build() -> Any:
        inputs = keras.Input(batch_shape=(4, 5, 3))
        layer = wrap(keras.layers.LSTM(2, stateful=True, name="memory"))
        return keras.Model(inputs, keras.layers.Dense(2)(layer(inputs)))

    with pytest.raises(errors.UserCodeError, match=r"memory is stateful: .* Set stateful=False"):
        split_ranks.prepare_new(examples(build), STAGES, 1, batch=4)


def test_why_no_layer_can_be_divided_is_said() -> None:
    inputs = keras.Input((3, 4))
    layer = keras.layers.TimeDistributed(keras.layers.Dense(2), name="frames")
    model = keras.Model(inputs, layer(inputs))
    plan = split_group.assign(recording.record(model), {shape.Axis.TENSOR: 2})
    pattern = r"can be divided over it \(frames: there is no rule for TimeDistributed\): give 1"
    with pytest.raises(errors.BadConfigurationError, match=pattern):
        shardings.check(plan.choices, plan.degrees)
