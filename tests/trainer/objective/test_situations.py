"""Models of public bug reports: ranks and stages train the weights of one process."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import cases, cases_split, ranks, reference, split_models, weights
from tfparallel_trainer.comms import shape

LAYERS, OPS = keras.layers, keras.ops
BATCH, STEPS, EXAMPLES = 4, 3, 12
RANDOM = np.random.default_rng(5)
X, Y = RANDOM.normal(size=(EXAMPLES, 3)), RANDOM.normal(size=(EXAMPLES, 2))

pytestmark = split_models.MARKS


class Transposed(keras.layers.Layer):
    """The way back through a dense layer, whose kernel it shares."""

    def __init__(self, dense: Any) -> None:
        super().__init__()
        self.dense = dense

    def build(self, sizes: Any) -> None:
        self.offset = self.add_weight(shape=(3,), initializer="zeros")

    def call(self, x: Any) -> Any:
        return OPS.matmul(x, OPS.transpose(self.dense.kernel)) + self.offset


class Derivative(keras.layers.Layer):
    """A field and its derivative, as physics-informed models use it."""

    def build(self, sizes: Any) -> None:
        self.field = LAYERS.Dense(1, "tanh")
        self.field.build(sizes)

    def call(self, x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            value = self.field(x)
        return OPS.concatenate([value, tape.gradient(value, x)[:, :1]], -1)


def tied() -> Any:
    dense = LAYERS.Dense(2, "tanh")
    inputs = keras.Input((3,))
    return keras.Model(inputs, LAYERS.Dense(2)(Transposed(dense)(dense(inputs))))


def derived() -> Any:
    return keras.Sequential([keras.Input((3,)), LAYERS.Dense(3, "tanh"), Derivative()])


def frozen_norm() -> Any:
    norm = LAYERS.BatchNormalization(synchronized=True, trainable=False)
    return keras.Sequential([keras.Input((3,)), LAYERS.Dense(3, "tanh"), norm, LAYERS.Dense(2)])


def plain() -> Any:
    return keras.Sequential([keras.Input((3,)), LAYERS.Dense(3, "tanh"), LAYERS.Dense(2)])


def video() -> Any:
    """Frames of which some are masked, below a layer that each goes through."""
    inputs = keras.Input((4, 3), name="frames")
    frames = LAYERS.TimeDistributed(LAYERS.Dense(3, "tanh"))(LAYERS.Masking()(inputs))
    return keras.Model({"frames": inputs}, LAYERS.Dense(2)(LAYERS.LSTM(3)(frames)))


def text() -> Any:
    vectorization = LAYERS.TextVectorization(vocabulary=["a", "b", "c"], output_sequence_length=2)
    inputs = keras.Input((), dtype="string")
    embedded = LAYERS.Embedding(5, 3)(vectorization(inputs))
    return keras.Model(inputs, LAYERS.Dense(2)(LAYERS.GlobalAveragePooling1D()(embedded)))


def perceptual() -> Callable[[Any, Any], Any]:
    """A loss that compares what a fixed model makes of targets and predictions."""
    kernel = keras.Variable(np.random.default_rng(1).normal(size=(2, 3)), trainable=False)

    def features(x: Any) -> Any:
        return OPS.tanh(OPS.matmul(x, kernel))

    def distance(y: Any, y_pred: Any) -> Any:
        return OPS.mean(OPS.square(features(y) - features(y_pred)), -1)

    return distance


def job(build: Callable[[], Any], loss: Callable[[], Any], x: Any) -> dict[str, Any]:
    def compile_model(model: Any) -> None:
        model.compile(keras.optimizers.Adam(0.05, global_clipnorm=0.5), loss())

    return {"build_model": build, "compile_model": compile_model, "training_data": lambda: (x, Y)}


FRAMES = {"frames": RANDOM.normal(size=(EXAMPLES, 4, 3)) * (np.arange(4) < 3)[None, :, None]}
JOBS = {
    "a kernel that is shared transposed": job(tied, lambda: "mse", X),
    "an inner derivative": job(derived, lambda: "mse", X),
    "a frozen normalisation": job(frozen_norm, lambda: "mse", X),
    "a loss that calls a model": job(plain, perceptual, X),
    "text within the model": job(text, lambda: "mse", np.array(["a b", "c", "b d", ""] * 3)),
    "masked frames in a dictionary": job(video, lambda: "mse", FRAMES),
}


SITUATIONS = pytest.mark.parametrize("functions", JOBS.values(), ids=JOBS)


@SITUATIONS
def test_ranks_train_the_weights_of_one_process(functions: dict[str, Any]) -> None:
    module = ranks.module(functions["build_model"], functions["compile_model"])
    x, y = functions["training_data"]()
    (single,) = ranks.build(module, (x, y, None), 1)
    for first in range(0, EXAMPLES, BATCH):
        part = keras.tree.map_structure(lambda array, at=first: array[at : at + BATCH], (x, y))
        single.model.train_on_batch(*part)
    expected = single.model.get_weights()
    replicas, _ = ranks.run(module, (x, y, None), 3, BATCH)
    for member in replicas:
        assert weights.difference(member.model.get_weights(), expected) <= 1e-13


@SITUATIONS
def test_stages_train_the_weights_of_one_process(functions: dict[str, Any]) -> None:
    module, mesh = types.SimpleNamespace(**functions), shape.MeshShape(stage=2)
    expected, _ = reference.train(module, STEPS, BATCH, cases.SEED)
    _, difference = cases_split.train_on_mesh(functions, mesh, 2, BATCH, expected, STEPS)
    assert difference <= weights.TOLERANCE
