"""Layers that are split over the tensor axis by their weights, each against itself unsplit."""

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st

from testing.trainer import split_group
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment
from tfparallel_trainer.engines.split.layers.rules import registry

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]
# Each example is traced: of each layer few in the ordinary run, many new ones in the long tier.
few = settings(
    max_examples=settings().max_examples // 10,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
TENSOR = shape.Axis.TENSOR
LAYERS = keras.layers
several = st.integers(2, 4)


def compare(
    width: tuple[int, ...],
    make: Callable[[], Any],
    ranks: int,
    sharding: str,
) -> assignment.Assignment:
    """A layer between a weight for each number of its input and the output."""

    def build() -> Any:
        first = keras.Input(width)
        layer = make()
        layer.name = "split"
        return keras.Model(first, layer(split_group.Source()(first)))

    return run(build, ranks, sharding)


def run(
    build: Callable[[], Any], ranks: int, sharding: str, **options: bool
) -> assignment.Assignment:
    plan = split_group.compare(build, {TENSOR: ranks}, overrides={"split": sharding}, **options)
    (chosen,) = [choice for choice in plan.choices if choice.node.name == "split"]
    assert chosen.sharding == sharding
    assert any(not shard.layout.is_whole for shard in chosen.split.variables.values())
    return plan


@few
@given(
    ranks=several,
    rows=st.integers(4, 12),
    features=st.integers(4, 7),
    sharding=st.sampled_from(["vocabulary", "features"]),
    masked=st.booleans(),
)
def test_embeddings(ranks: int, rows: int, features: int, sharding: str, masked: bool) -> None:
    def build() -> Any:
        first = keras.Input((5,), dtype="int32")
        places = keras.ops.mod(first, rows)
        layer = LAYERS.Embedding(rows, features, mask_zero=masked, name="split")
        return keras.Model(first, layer(places))

    run(build, ranks, sharding)


class DescribedEmbedding(keras.layers.Embedding):
    """A table with an attribute more."""

    def __init__(self, description: str, **options: Any) -> None:
        super().__init__(**options)
        self.description = description


class Doubled(DescribedEmbedding):
    def call(self, tokens: Any) -> Any:
        return super().call(tokens) * 2.0


@pytest.mark.parametrize(
    ("kind", "expected"), [(DescribedEmbedding, "vocabulary"), (Doubled, "replicated")]
)
def test_a_subclass_of_a_table_is_split_if_it_computes_as_one(kind: Any, expected: str) -> None:
    def build() -> Any:
        first = keras.Input((5,), dtype="int32")
        layer = kind("of letters", input_dim=9, output_dim=4, name="table")
        return keras.Model(first, layer(keras.ops.mod(first, 9)))

    overrides = {} if expected == "replicated" else {"table": expected}
    plan = split_group.compare(build, {TENSOR: 2}, overrides=overrides)
    assert plan.choices[-1].sharding == expected


@pytest.mark.parametrize("sharding", ["vocabulary", "features"])
@pytest.mark.parametrize("cap", [None, 0.5])
def test_a_table_that_is_the_head_too(sharding: str, cap: float | None) -> None:
    def build() -> Any:
        first = keras.Input((5,), dtype="int32")
        table = LAYERS.ReversibleEmbedding(9, 6, logit_soft_cap=cap, name="table")
        states = LAYERS.Dense(6, "tanh")(table(keras.ops.mod(first, 9)))
        return keras.Model(first, table(states, reverse=True))

    plan = split_group.compare(build, {TENSOR: 2}, overrides={"table": sharding})
    tables = [choice for choice in plan.choices if choice.node.calls.name == "table"]
    assert [choice.sharding for choice in tables] == [sharding, sharding]
    (shard,) = tables[0].split.variables.values()
    assert shard.layout.cuts[0 if sharding == "vocabulary" else 1] is not None


EQUATIONS = [
    ("ab,bc->ac", (6,), (7,), "c"),
    ("abc,cd->abd", (3, 5), (3, 6), "d"),
    ("...x,xy->...y", (3, 5), (6,), "y"),
    ("abc,cde->abde", (3, 5), (3, 4, 2), "de"),
    ("abc,cde->abde", (3, 5), (3, 2, 4), "d"),
    ("abde,dec->abc", (3, 4, 5), (3, 6), "c"),
]


@few
@given(ranks=several, which=st.sampled_from(EQUATIONS), sharding=st.sampled_from(["column", "row"]))
def test_einsum(ranks: int, which: tuple[Any, ...], sharding: str) -> None:
    equation, width, output, bias = which
    compare(
        width,
        lambda: LAYERS.EinsumDense(equation, output, bias_axes=bias, activation="tanh"),
        ranks,
        sharding,
    )


_PLAIN = {"use_bias": False, "dropout": 0.0}
_UNMASKED = {"crosses": False, "causal": False, "masked": False}


@few
@example(ranks=2, heads=3, size=2, options=_PLAIN, scores=True, **_UNMASKED)
@given(
    ranks=st.integers(2, 3),
    heads=st.integers(3, 5),
    size=st.integers(2, 3),
    options=st.fixed_dictionaries(
        {
            "use_bias": st.booleans(),
            "value_dim": st.sampled_from([None, 4]),
            "output_shape": st.sampled_from([None, 5]),
            "use_gate": st.booleans(),
            "dropout": st.sampled_from([0.0, 0.3]),
        }
    ),
    crosses=st.booleans(),
    causal=st.booleans(),
    masked=st.booleans(),
    scores=st.booleans(),
)
def test_attention_by_heads(
    ranks: int,
    heads: int,
    size: int,
    options: dict[str, Any],
    crosses: bool,
    causal: bool,
    masked: bool,
    scores: bool,
) -> None:
    assume(not (masked and scores))  # the scores' mask is known to Keras alone

    def build() -> Any:
        tokens = keras.Input((4,), dtype="int32")
        rows = LAYERS.Embedding(9, 6, mask_zero=masked)(tokens)
        other = LAYERS.Embedding(9, 5, mask_zero=masked)(tokens) if crosses else rows
        layer = LAYERS.MultiHeadAttention(heads, size, name="split", seed=1, **options)
        outputs = layer(rows, other, use_causal_mask=causal, return_attention_scores=scores)
        return keras.Model(tokens, outputs)

    lost = pytest.raises(errors.UserCodeError, match="split hangs a mask on what it gives")
    with lost if causal and scores else contextlib.nullcontext():
        run(build, ranks, "heads", training=True, counted=not options["dropout"])


@few
@given(
    ranks=several,
    unit=st.integers(1, 2),
    bias=st.booleans(),
    causal=st.booleans(),
    gated=st.booleans(),
)
def test_attention_by_shared_heads(
    ranks: int, unit: int, bias: bool, causal: bool, gated: bool
) -> None:
    def build() -> Any:
        first = keras.Input((4, 6))
        layer = LAYERS.GroupQueryAttention(
            3, 5 * unit, 5, use_bias=bias, use_gate=gated, name="split"
        )
        source_tensor = split_group.Source()(first)
        return keras.Model(first, layer(source_tensor, source_tensor, use_causal_mask=causal))

    run(build, ranks, "heads")


@few
@given(
    ranks=several,
    rank=st.integers(1, 2),
    kind=st.sampled_from(["Conv{}D", "SeparableConv{}D", "Conv{}DTranspose"]),
    sharding=st.sampled_from(["filters", "channels"]),
    filters=st.integers(4, 6),
    channels=st.integers(4, 5),
    bias=st.booleans(),
    stride=st.integers(1, 2),
)
def test_convolutions(
    ranks: int,
    rank: int,
    kind: str,
    sharding: str,
    filters: int,
    channels: int,
    bias: bool,
    stride: int,
) -> None:
    compare(
        (*(5,) * rank, channels),
        lambda: getattr(LAYERS, kind.format(rank))(
            filters, 3, strides=stride, padding="same", activation="tanh", use_bias=bias
        ),
        ranks,
        sharding,
    )


def test_convolutions_in_three_dimensions() -> None:
    compare((3, 3, 3, 4), lambda: LAYERS.Conv3D(4, 2, dilation_rate=2), 2, "filters")


@few
@given(
    ranks=st.integers(2, 3),
    unit=st.integers(1, 2),
    more=st.integers(1, 2),
    depthwise=st.booleans(),
    bias=st.booleans(),
)
def test_convolutions_by_groups(
    ranks: int, unit: int, more: int, depthwise: bool, bias: bool
) -> None:
    def make() -> Any:
        if depthwise:
            return LAYERS.DepthwiseConv2D(3, depth_multiplier=more, use_bias=bias)
        return LAYERS.Conv2D(4 * more, 3, groups=4, use_bias=bias, padding="same")

    compare((4, 4, 4 * unit), make, ranks, "groups")


@pytest.mark.parametrize("shardings", [("filters", "channels"), ("filters", "filters")])
def test_two_convolutions(shardings: tuple[str, str]) -> None:
    def build() -> Any:
        first = keras.Input((5, 5, 3))
        rows = LAYERS.Conv2D(4, 3, name="first", activation="relu")(split_group.Source()(first))
        return keras.Model(first, LAYERS.Conv2D(5, 2, name="second")(rows))

    wishes = dict(zip(("first", "second"), shardings, strict=True))
    split_group.compare(build, {TENSOR: 2}, overrides=wishes)
    if shardings[0] != shardings[1]:
        plan = split_group.compare(build, {TENSOR: 2})
        assert [choice.sharding for choice in plan.choices] == [registry.REPLICATED, *shardings]


NORMALISATIONS: dict[str, Callable[[], Any]] = {
    "layer": lambda: LAYERS.LayerNormalization(name="split"),
    "layer without shift": lambda: LAYERS.LayerNormalization(center=False, name="split"),
    "layer over all": lambda: LAYERS.LayerNormalization(axis=(1, 2), name="split"),
    "layer over another": lambda: LAYERS.LayerNormalization(axis=1, name="split"),
    "mean square": lambda: LAYERS.RMSNormalization(name="split"),
    "groups": lambda: LAYERS.GroupNormalization(6, name="split"),
}


@pytest.mark.parametrize("name", NORMALISATIONS)
@pytest.mark.parametrize("ranks", [2, 3])
def test_normalisations_of_parts(name: str, ranks: int) -> None:
    def build() -> Any:
        first = keras.Input((5, 12))
        rows = LAYERS.Dense(12, name="cut")(split_group.Source()(first))
        return keras.Model(first, NORMALISATIONS[name]()(rows))

    plan = split_group.compare(build, {TENSOR: ranks}, overrides={"cut": "column"}, training=True)
    assert plan.choices[-1].sharding != registry.REPLICATED


def decoder() -> Any:
    """A transformer as people write it, with learned places and a mask of later positions."""
    tokens = keras.Input((6,), dtype="int32")
    places = LAYERS.Embedding(6, 8)(keras.ops.cumsum(keras.ops.ones_like(tokens), 1) - 1)
    rows = LAYERS.Embedding(9, 8, mask_zero=True)(tokens) + places
    for _ in range(2):
        near = LAYERS.LayerNormalization()(rows)
        near = LAYERS.MultiHeadAttention(4, 2)(near, near, use_causal_mask=True)
        rows = LAYERS.Add()([rows, LAYERS.Dropout(0.2, seed=3)(near)])
        near = LAYERS.LayerNormalization()(rows)
        near = LAYERS.Dense(8)(LAYERS.Dense(16, activation="gelu")(near))
        rows = LAYERS.Add()([rows, LAYERS.Dropout(0.2, seed=4)(near)])
    return keras.Model(tokens, LAYERS.Dense(9)(LAYERS.LayerNormalization()(rows)))


def images() -> Any:
    first = keras.Input((8, 8, 1))
    rows = LAYERS.Conv2D(8, 3, padding="same", use_bias=False)(first)
    rows = LAYERS.ReLU()(LAYERS.LayerNormalization()(rows))
    rows = LAYERS.DepthwiseConv2D(3, padding="same")(rows)
    rows = LAYERS.Conv2D(6, 1, activation="relu")(rows)
    rows = LAYERS.GlobalAveragePooling2D()(rows)
    return keras.Model(first, LAYERS.Dense(10, activation="softmax")(rows))


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("build", [decoder, images])
def test_whole_models_divide_all_that_is_large(build: Callable[[], Any], ranks: int) -> None:
    plan = split_group.compare(build, {TENSOR: ranks}, training=True)
    for choice in plan.choices:
        for key in choice.node.variables:
            if len(plan.model.variables[key].shape) > 1:
                assert not plan.variables[key].layout.is_whole, choice.node.name
