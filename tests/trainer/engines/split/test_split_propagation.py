"""Layers and operations that follow the layout of their input."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.trainer import split_group
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, layout
from tfparallel_trainer.engines.split.layers.rules import propagation, registry

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR
LAYERS = keras.layers


def run(
    width: tuple[int, ...],
    between: Callable[[Any, Any], Any],
    degrees: dict[shape.Axis, int] | None = None,
    training: bool = False,
) -> assignment.Assignment:
    """A column, what is tested on its output and the whole input, and a last layer."""
    first = keras.Input(width)

    def build() -> Any:
        source_tensor = split_group.Source()(first)
        cut = LAYERS.Dense(width[-1], name="cut")(source_tensor)
        return keras.Model(first, between(cut, source_tensor))

    return split_group.compare(
        build, degrees or {TENSOR: 3}, overrides={"cut": "column"}, training=training
    )


def find_shardings(plan: assignment.Assignment) -> list[str]:
    return [choice.sharding for choice in plan.choices[2:]]


FOLLOW: dict[str, Callable[[Any, Any], Any]] = {
    "activation": lambda cut, whole: LAYERS.Activation("gelu")(cut),
    "leaky": lambda cut, whole: LAYERS.LeakyReLU()(cut),
    "softmax over another axis": lambda cut, whole: LAYERS.Softmax(axis=1)(cut),
    "add": lambda cut, whole: LAYERS.Add()([whole, cut]),
    "multiply": lambda cut, whole: LAYERS.Multiply()([cut, whole, cut]),
    "broadcast": lambda cut, whole: LAYERS.Multiply()([cut, whole[:, :, :1]]),
    "concatenate": lambda cut, whole: LAYERS.Concatenate(axis=1)([whole, cut]),
    "permute": lambda cut, whole: LAYERS.Permute((2, 1))(cut),
    "transpose": lambda cut, whole: keras.ops.transpose(cut, (0, 2, 1)),
    "arithmetic": lambda cut, whole: keras.ops.tanh(cut * 2.0 - whole) / 3.0,
    "choice": lambda cut, whole: cut[:, 1],
    "reshape": lambda cut, whole: LAYERS.Reshape((4, 3, 2))(cut),
    "reshape by an operation": lambda cut, whole: keras.ops.reshape(cut, (-1, 4, 3, 2)),
    "flatten": lambda cut, whole: LAYERS.Flatten()(LAYERS.Permute((2, 1))(cut)),
    "dropout": lambda cut, whole: LAYERS.Dropout(0.4, seed=1)(cut),
    "spatial dropout": lambda cut, whole: LAYERS.SpatialDropout1D(0.4, seed=1)(cut),
    "noise": lambda cut, whole: LAYERS.GaussianNoise(0.4, seed=1)(cut),
    "factors": lambda cut, whole: LAYERS.GaussianDropout(0.4, seed=1)(cut),
}
GATHER: dict[str, Callable[[Any, Any], Any]] = {
    "softmax": lambda cut, whole: LAYERS.Softmax()(cut),
    "softmax by name": lambda cut, whole: LAYERS.Activation("softmax")(cut),
    "joined": lambda cut, whole: LAYERS.Concatenate()([whole, cut]),
    "chosen": lambda cut, whole: cut[..., :2],
    "flatten": lambda cut, whole: LAYERS.Flatten()(cut),
    "reshape": lambda cut, whole: LAYERS.Reshape((4, 2, 3))(cut),
    "constant": lambda cut, whole: cut + np.ones((4, 6)),
    "limits": lambda cut, whole: keras.ops.clip(cut, np.zeros(6), np.linspace(0.1, 0.6, 6)),
    "product": lambda cut, whole: keras.ops.matmul(cut, keras.ops.transpose(whole, (0, 2, 1))),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_what_works_on_parts_keeps_them(name: str) -> None:
    plan = run((4, 6), FOLLOW[name], training=True)
    assert registry.REPLICATED not in [
        choice.sharding for choice in plan.choices[2:] if choice.node.name != "get_item"
    ]


@pytest.mark.parametrize("name", GATHER)
def test_what_needs_all_gathers(name: str) -> None:
    plan = run((4, 6), GATHER[name])
    assert plan.choices[-1].sharding == registry.REPLICATED
    assert plan.choices[-1].why


@given(
    examples=st.integers(1, 6),
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    other=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    ranks=st.integers(1, 3),
    data=st.data(),
)
def test_reshaped_parts_are_parts_of_what_is_reshaped(
    examples: int, dims: list[int], other: list[int], ranks: int, data: st.DataObject
) -> None:
    size = examples * int(np.prod(dims))
    new = other if size % int(np.prod(other)) == 0 else [size // examples]
    dim = data.draw(st.sampled_from(range(len(dims)))) + 1
    if dims[dim - 1] < ranks:
        return
    cut = layout.even(TENSOR, dims[dim - 1], ranks)
    survives = propagation.survives((None, *dims), (None, *new), dim, cut)
    if survives is None:
        return
    whole = np.arange(size).reshape(examples, *dims)
    reshaped = whole.reshape(-1, *new)
    before = layout.cut(1 + len(dims), dim, cut)
    after = layout.cut(1 + len(new), *survives)
    for index in range(ranks):
        at = {TENSOR: index}
        mine = whole[before.part(at)].reshape(
            [size or -1 for size in after.local((None, *new), at)]
        )
        np.testing.assert_array_equal(mine, reshaped[after.part(at)])


@pytest.mark.parametrize(
    ("old", "new", "there"),
    [
        ((None, 4, 6), (None, 6), 1),  # steps become examples
        ((None, 2, 4, 6), (None, 4, 6), 2),  # windows do
        ((None, 6), (None, 2, 6), 2),  # and are examples again
        ((None, 6), (None, 3), None),  # each example becomes two
        ((None, 2, 6), (None, 12), None),
    ],
)
def test_a_cut_survives_where_its_rows_hold_as_much(
    old: tuple[int | None, ...], new: tuple[int | None, ...], there: int | None
) -> None:
    dim = len(old) - 1
    survives = propagation.survives(old, new, dim, layout.even(TENSOR, 6, 3))
    assert (survives and survives[0]) == there


def global_response(x: Any) -> Any:
    """Divides by the norm over places, as a layer of ConvNeXt does."""
    norms = keras.ops.sqrt(keras.ops.sum(keras.ops.square(x), 1, keepdims=True))
    return x / (keras.ops.mean(norms, -1, keepdims=True) + 1.0)


OF_ALL: dict[str, Callable[[Any], Any]] = {
    "layer": lambda rows: LAYERS.Activation(global_response)(rows),
    "column": lambda rows: LAYERS.Dense(4, global_response, name="wish")(rows),
    "row": lambda rows: LAYERS.Dense(4, global_response, name="wish")(rows),
    "convolution": lambda rows: LAYERS.Conv1D(4, 3, activation=global_response)(rows),
}


@pytest.mark.parametrize("degrees", [{SPATIAL: 2}, {TENSOR: 2}, {SPATIAL: 2, TENSOR: 2}], ids=str)
@pytest.mark.parametrize("name", OF_ALL)
def test_an_unknown_activation_gets_all_of_its_input(
    name: str, degrees: dict[shape.Axis, int]
) -> None:
    first = keras.Input((8, 3))

    def build() -> Any:
        rows = LAYERS.Conv1D(4, 3, padding="same", name="first")(split_group.Source()(first))
        return keras.Model(first, OF_ALL[name](rows))

    wishes = {"first": "rows" if SPATIAL in degrees else "filters"}
    if name in {"column", "row"} and TENSOR in degrees:
        wishes["wish"] = name
    split_group.compare(build, degrees, overrides=wishes)


def test_a_rescaling_by_several_numbers_gets_the_whole_input() -> None:
    plan = run((4, 6), lambda cut, whole: LAYERS.Rescaling(list(range(1, 7)))(cut))
    assert plan.choices[-1].sharding == registry.REPLICATED
