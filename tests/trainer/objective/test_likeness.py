"""What differs between the models of two processes, besides variables, shows and has a name."""

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer.objective import likeness, tracing

WORDS = ["red", "green", "blue"]
X = np.array(WORDS)[:, None]
Y = np.zeros((3, 2), "float32")
SPEC = (tf.TensorSpec((None, 1), tf.string), tf.TensorSpec((None, 2), tf.float32), None)


@keras.saving.register_keras_serializable("likeness")
class Shifted(keras.layers.Layer):
    """Adds numbers that it has drawn, which its configuration does not say."""

    def __init__(self, shift: Any, **more: Any) -> None:
        super().__init__(**more)
        self.shift = shift

    def call(self, x: Any) -> Any:
        return x + self.shift


def describe(
    words: Any = WORDS,
    *,
    adapted: Any = WORDS,
    rate: float = 0.5,
    shift: Any = 0.0,
    is_tensor: bool = False,
    scale: Any = 1.0,
    depth: int = 1,
    closes_over: bool = False,
) -> likeness.Digests:
    """Describe a model that is built now, with whatever its process makes of the arguments."""

    closure = tf.Variable(1.0, trainable=False)

    def loss(y: Any, y_pred: Any) -> Any:
        factor = closure if closes_over else scale
        return keras.ops.mean(keras.ops.square(y - y_pred) * factor, axis=-1)

    def build() -> Any:
        first = keras.Input((1,), dtype="string")
        texts = keras.layers.TextVectorization(output_sequence_length=1, name="texts")
        texts.adapt(list(adapted))
        lookup = keras.layers.StringLookup(vocabulary=list(words), name="lookup")
        x = keras.layers.Embedding(9, 4)(keras.ops.add(lookup(first), texts(first)))
        x = keras.layers.Dropout(rate, name="dropout")(keras.layers.Flatten()(x))
        x = keras.layers.Lambda(lambda one: one * 2.0, name="doubled")(x)
        x = Shifted(tf.constant(0.5) if is_tensor else shift, name="shifted")(x)
        for _ in range(depth):
            x = keras.ops.tanh(x)
        return keras.Model(first, keras.layers.Dense(2)(x))

    module = ranks.module(build, lambda model: model.compile("adam", loss))
    (one,) = ranks.build_apart(module, (X, Y, None), 1)
    traced = likeness.describe_trace(one.model, tracing.trace(one, SPEC))
    return {**likeness.describe(one.model), **traced}


@pytest.fixture(scope="module")
def digests() -> likeness.Digests:
    keras.utils.set_random_seed(1)
    return describe()


def test_models_that_are_built_alike_are_alike(digests: likeness.Digests) -> None:
    """Whatever their weights, and the seeds of what is random."""
    keras.utils.set_random_seed(2)
    assert describe() == digests


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"words": WORDS[::-1]}, "the layer lookup (StringLookup)"),
        ({"adapted": ["green", "red"]}, "the layer texts (TextVectorization)"),
        ({"rate": 0.25}, "the layer dropout (Dropout)"),
        ({"shift": 0.5}, "the layer shifted (Shifted)"),
        ({"shift": np.float32(0.5)}, "the layer shifted (Shifted)"),
        ({"is_tensor": True}, "the layer shifted (Shifted)"),
        ({"scale": 2.0}, "the loss"),
        ({"depth": 2}, "the loss, the metrics or the operations of a step"),
        ({"closes_over": True}, "the loss"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_differs_has_a_name(
    change: dict[str, Any], place: str, digests: likeness.Digests
) -> None:
    other = describe(**change)
    differing = [what for what in digests if other.get(what) != digests[what]]
    assert any(what.startswith(place) for what in differing), differing


class Branches(keras.layers.Layer):
    """Conditions, which TensorFlow keeps as functions of random names."""

    def call(self, x: Any) -> Any:
        for number in range(6):
            larger = keras.ops.sum(x) > number
            x = tf.cond(larger, lambda x=x, n=number: x + n, lambda x=x, n=number: x - n)
        return x


def test_names_of_the_functions_of_a_graph_do_not_count() -> None:
    module = ranks.module(
        lambda: keras.Sequential([keras.Input((2,)), Branches(name="branches")]),
        lambda model: model.compile("sgd", "mse"),
    )
    x = np.ones((3, 2), "float32")
    (one,) = ranks.build_apart(module, (x, x, None), 1)
    spec = (*[tf.TensorSpec((None, 2), tf.float32)] * 2, None)
    constants = [tracing.trace(one, spec).constants for _ in range(3)]
    assert constants[1:] == constants[:-1]
