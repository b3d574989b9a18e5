"""Dense layers that are split over the tensor axis."""

from typing import Any

import keras
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from testing.trainer import split_group
from tfparallel_trainer.comms import shape

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
# Each example is traced: of each layer few in the ordinary run, many new ones in the long tier.
few = settings(max_examples=settings().max_examples // 5, deadline=None)
TENSOR = shape.Axis.TENSOR


def one_layer(width: tuple[int, ...], **options: Any) -> Any:
    first = keras.Input(width)
    layer = keras.layers.Dense(name="split", **options)
    return keras.Model(first, layer(split_group.Source()(first)))


@few
@given(
    ranks=st.integers(2, 4),
    width=st.tuples(st.integers(4, 7)) | st.tuples(st.integers(1, 3), st.integers(4, 7)),
    units=st.integers(4, 9),
    bias=st.booleans(),
    activation=st.sampled_from([None, "tanh", "softmax"]),
    sharding=st.sampled_from(["column", "row"]),
)
@pytest.mark.usefixtures("float64")
def test_a_split_layer_computes_the_same(
    ranks: int,
    width: tuple[int, ...],
    units: int,
    bias: bool,
    activation: str | None,
    sharding: str,
) -> None:
    plan = split_group.compare(
        lambda: one_layer(width, units=units, use_bias=bias, activation=activation),
        {TENSOR: ranks},
        overrides={"split": sharding},
    )
    assert plan.choices[-1].sharding == sharding
