"""Layers and operations that follow the layout of their input."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from testing.trainer import split_group
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.split.layers import assignment, layout
from tfparallel_trainer.split.layers.rules import following, registry

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
        given = split_group.Source()(first)
        cut = LAYERS.Dense(width[-1], name="cut")(given)
        return keras.Model(first, between(cut, given))

    return split_group.compare(
        build, degrees or {TENSOR: 3}, wishes={"cut": "column"}, training=training
    )


def ways(plan: assignment.Assignment) -> list[str]:
    return [choice.way for choice in plan.choices[2:]]


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
    "product": lambda cut, whole: keras.ops.matmul(cut, keras.ops.transpose(whole, (0, 2, 1))),
}


@pytest.mark.parametrize("name", FOLLOW)
def test_what_works_on_parts_keeps_them(name: str) -> None:
    plan = run((4, 6), FOLLOW[name], training=True)
    assert registry.REPLICATED not in [
        choice.way for choice in plan.choices[2:] if choice.node.name != "get_item"
    ]


@pytest.mark.parametrize("name", GATHER)
def test_what_needs_all_gathers(name: str) -> None:
    plan = run((4, 6), GATHER[name])
    assert plan.choices[-1].way == registry.REPLICATED
    assert plan.choices[-1].why


@given(
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    other=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    ranks=st.integers(1, 3),
    data=st.data(),
)
def test_reshaped_parts_are_parts_of_what_is_reshaped(
    dims: list[int], other: list[int], ranks: int, data: st.DataObject
) -> None:
    size = int(np.prod(dims))
    new = [one for one in other if size % int(np.prod(other)) == 0] or [size]
    new.append(size // int(np.prod(new)))
    place = data.draw(st.sampled_from(range(len(dims)))) + 1
    if dims[place - 1] < ranks:
        return
    cut = layout.even(TENSOR, dims[place - 1], ranks)
    found = following.survives((None, *dims), (None, *new), place, cut)
    if found is None:
        return
    whole = np.arange(2 * size).reshape(2, *dims)
    before = layout.cut(1 + len(dims), place, cut)
    after = layout.cut(1 + len(new), *found)
    for index in range(ranks):
        at = {TENSOR: index}
        mine = whole[before.part(at)].reshape([size or -1 for size in after.local((2, *new), at)])
        np.testing.assert_array_equal(mine, whole.reshape(2, *new)[after.part(at)])
