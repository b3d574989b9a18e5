"""Models of every shape that users write, each as a function that builds it."""

import pathlib
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from tfparallel_trainer import user
from tfparallel_trainer.engines.split.model import graph, interpreter, recording, skeleton
from tfparallel_trainer.objective import replica

LAYERS = keras.layers


def sequential() -> Any:
    return keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            LAYERS.Conv2D(4, 3, padding="same", activation="relu"),
            LAYERS.BatchNormalization(),
            LAYERS.MaxPooling2D(),
            LAYERS.Flatten(),
            LAYERS.Dropout(0.5),
            LAYERS.Dense(3),
        ]
    )


def skips() -> Any:
    first = keras.Input((6,))
    branch = LAYERS.Dense(5, activation="tanh")(first)
    two = LAYERS.Dense(5, activation="tanh")(branch)
    three = LAYERS.Dense(5)(LAYERS.Add()([branch, two]))
    return keras.Model(first, LAYERS.Dense(2)(LAYERS.Concatenate()([branch, three, first])))


def shared() -> Any:
    left, right = keras.Input((4,), name="second"), keras.Input((4,), name="first")
    both = LAYERS.Dense(3, activation="tanh", name="both")
    near = LAYERS.Dot(1)([both(left), both(right)])
    return keras.Model([left, right], LAYERS.Dense(1)(near))


def nested() -> Any:
    inner_in = keras.Input((5,))
    inner = keras.Model(inner_in, LAYERS.Dense(5)(inner_in) + inner_in, name="inner")
    tower = keras.Sequential(
        [keras.Input((5,)), LAYERS.Dense(5, activation="tanh"), inner], name="tower"
    )
    first = keras.Input((5,))
    return keras.Model(first, LAYERS.Dense(2)(tower(inner(first)) - inner(first)))


def operations() -> Any:
    first = keras.Input((4, 6))
    turned = keras.ops.transpose(first, (0, 2, 1))
    mixed = keras.ops.matmul(LAYERS.Dense(6)(first), turned)
    flat = keras.ops.reshape(mixed[:, 1:], (-1, 12))
    return keras.Model(first, LAYERS.Dense(2)(keras.ops.relu(flat) * 2.0 + 1.0))


def several() -> Any:
    picture = keras.Input((6,), name="picture")
    text = keras.Input((3,), name="text")
    joined = LAYERS.Concatenate()([LAYERS.Dense(4)(picture), text])
    outputs = {"kind": LAYERS.Dense(3, name="kind")(joined), "size": LAYERS.Dense(1)(joined)}
    return keras.Model({"picture": picture, "text": text}, outputs)


def masked() -> Any:
    tokens = keras.Input((5,), dtype="int32")
    rows = LAYERS.Embedding(9, 6, mask_zero=True)(tokens)
    rows = LAYERS.Dropout(0.2)(rows)
    rows = LAYERS.GRU(4, return_sequences=True)(rows)
    rows = LAYERS.Add()([rows, LAYERS.MultiHeadAttention(2, 3)(rows, rows)])
    return keras.Model(tokens, LAYERS.Dense(2)(rows))


def masked_nested() -> Any:
    encoder = keras.Sequential(
        [keras.Input((5, 6)), LAYERS.Dropout(0.3), LAYERS.LSTM(4, return_sequences=True)]
    )
    tokens = keras.Input((5,), dtype="int32")
    rows = encoder(LAYERS.Embedding(9, 6, mask_zero=True)(tokens))
    states = LAYERS.LSTM(4, return_state=True)(rows)
    return keras.Model(tokens, LAYERS.Dense(2)(states[0] + states[2]))


def listed() -> Any:
    first = keras.Input((4,))
    return keras.Model([first], [LAYERS.Dense(2)(first)])


def mixed() -> Any:
    """Half precision, except in the first layer of the nested model and in the last."""
    half = "mixed_float16"
    exact = LAYERS.Dense(4, activation="tanh", dtype="float32")
    tower = keras.Sequential([keras.Input((4,)), exact, LAYERS.Dense(4, dtype=half)], name="tower")
    tower.dtype_policy = half
    inner_in = keras.Input((4,))
    inner = keras.Model(inner_in, keras.ops.sin(inner_in) / 3.0, name="inner")
    first = keras.Input((4,))
    rows = LAYERS.Dense(4, dtype=half)(tower(first))
    return keras.Model(first, LAYERS.Dense(2, dtype="float32")(inner(rows)))


class Block(keras.layers.Layer):
    """A layer of the user's own, with layers inside that a graph does not see."""

    def __init__(self) -> None:
        super().__init__(name="block")
        self.supports_masking = True
        self.attention = LAYERS.MultiHeadAttention(2, 3)
        self.dropout = LAYERS.Dropout(0.4)

    def build(self, shape: Any) -> None:
        self.attention.build(shape, shape)

    def call(self, rows: Any) -> Any:
        return rows + self.dropout(self.attention(rows, rows))


def own_layers() -> Any:
    tokens = keras.Input((5,), dtype="int32")
    rows = Block()(LAYERS.Embedding(9, 6, mask_zero=True)(tokens))
    last = LAYERS.Dense(2, activity_regularizer="l2", kernel_regularizer="l2")
    return keras.Model(tokens, last(LAYERS.GlobalAveragePooling1D()(rows)))


ALL: dict[str, Callable[[], Any]] = {
    build.__name__: build
    for build in (
        sequential,
        skips,
        shared,
        nested,
        operations,
        several,
        masked,
        masked_nested,
        own_layers,
        listed,
        mixed,
    )
}


def inputs_of(model: Any, examples: int, seed: int = 1) -> Any:
    """Random inputs: small whole numbers, zeros among them, where the model takes such."""
    random = np.random.default_rng(seed)

    def draw(tensor: Any) -> Any:
        shape = (examples, *tensor.shape[1:])
        if "int" in tensor.dtype:
            return random.integers(0, 9, shape).astype(tensor.dtype)
        return random.normal(size=shape).astype(tensor.dtype)

    is_sequential = isinstance(model, keras.Sequential)
    return keras.tree.map_structure(draw, model.inputs[0] if is_sequential else model.input)


SEED = 7
MARKS = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    # Said of nested models, although their layers do pass masks on.
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]
"""Of tests that compare models in float64."""


def eager(build: Callable[[], Any]) -> Any:
    """The model as one process builds it."""
    replica.forget_names()
    keras.utils.set_random_seed(SEED)
    return build()


def bare(build: Callable[[], Any]) -> Any:
    """The model without its weights."""
    replica.forget_names()
    return skeleton.build(user.Module(pathlib.Path("model.py"), {"build_model": build}), SEED)


def values(model: Any) -> dict[str, Any]:
    """What the variables of a model hold, by key."""
    return {
        key: np.array(variable.value) for key, variable in recording.record(model).variables.items()
    }


class ModelOutputs(NamedTuple):
    """What a model gives for its inputs."""

    outputs: Any
    """Nested as the model gives them."""
    masks: dict[str, Any]
    """Of each output that has one, by its name."""
    changed: dict[str, Any]
    added_losses: tuple[Any, ...]


def run(
    model: graph.Graph, inputs: Any, variables: Mapping[str, Any], training: bool
) -> ModelOutputs:
    """Compute what calling the model would, on inputs that are nested as the model takes them."""
    values_by_number = interpreter.by_number(model, inputs)
    part = interpreter.run_nodes(model, model.nodes, values_by_number, variables, training)
    tensors = part.tensors
    return ModelOutputs(
        outputs=interpreter.outputs_of(model, tensors),
        masks={
            output.name: tensors[output.mask] for output in model.outputs if output.mask is not None
        },
        changed=part.changed,
        added_losses=part.added_losses,
    )
