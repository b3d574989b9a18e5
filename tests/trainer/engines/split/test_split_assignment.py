"""Whole models split over virtual ranks: every one runs, and equals the unsplit one."""

import collections
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from testing import paths, repeats
from testing.trainer import split_group, split_models, split_traffic
from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import recording, skeleton
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.objective import replica

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]
SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR
LAYERS = keras.layers


def lay(data: st.DataObject, dims: tuple[int, ...], degrees: dict[shape.Axis, int]) -> Any:
    """Any layout of a tensor whose first dimension is the batch."""
    order = data.draw(st.permutations(range(1, len(dims))))
    result = layout.whole(len(dims))
    for axis, dimension in zip(layout.AXES, order, strict=False):
        ranks, size = degrees[axis], dims[dimension]
        if ranks > 1 and data.draw(st.booleans()):
            extra = data.draw(st.integers(0, size - ranks))
            sizes = (1 + extra, *(1,) * (ranks - 2), size - extra - ranks + 1)
            result = result.put(dimension, layout.Cut(axis, sizes))
    return result


@settings(max_examples=settings().max_examples // 4, deadline=None)
@given(
    degrees=st.sampled_from([{SPATIAL: 1, TENSOR: 3}, {SPATIAL: 2, TENSOR: 2}]),
    rank=st.integers(2, 4),
    dtype=st.sampled_from(["float64", "bool", "bfloat16"]),
    in_pairs=st.booleans(),
    data=st.data(),
)
def test_resharding_keeps_the_tensor_and_its_gradient(
    degrees: dict[shape.Axis, int], rank: int, dtype: str, in_pairs: bool, data: st.DataObject
) -> None:
    dims = (2, *(data.draw(st.integers(3, 6)) for _ in range(rank - 1)))
    before, after = lay(data, dims, degrees), lay(data, dims, degrees)
    whole = tf.cast(np.random.default_rng(1).integers(0, 2, dims), dtype)
    upstream = tf.cast(np.random.default_rng(2).integers(0, 9, dims), dtype)
    members = split_group.ranks(degrees)
    for member in members:
        for group in member.groups.values():
            group.has_fast_pairs = in_pairs

    def run(member: split_group.Rank) -> Any:
        part = whole[before.part(member.coordinates)]
        with tf.GradientTape() as tape:
            tape.watch(part)
            resharded = adjoint.reshard(part, before, after, member.groups)
        if dtype == "bool":
            return resharded, resharded
        seed = upstream[after.part(member.coordinates)]
        return resharded, tape.gradient(resharded, part, output_gradients=seed)

    for member, (resharded, gradient) in zip(
        members, split_group.together(members, run), strict=True
    ):
        np.testing.assert_array_equal(resharded, whole[after.part(member.coordinates)])
        if dtype != "bool":
            np.testing.assert_array_equal(gradient, upstream[before.part(member.coordinates)])
    costs = communication.resharding(dims, dtype, before, after, dtype != "bool")
    total = split_traffic.brought(costs, 1)
    byte_counts = {member.brought() for member in members}
    is_exact = degrees[SPATIAL] == 1 and not in_pairs
    assert byte_counts == {total} if is_exact else max(byte_counts) <= total


BOTH = {SPATIAL: 2, TENSOR: 2}


@pytest.mark.parametrize("degrees", repeats.some([{TENSOR: 3}, BOTH], [{TENSOR: 3}]), ids=str)
@pytest.mark.parametrize("name", [name for name in split_models.ALL if name != "mixed"])
def test_every_model_runs_split_as_unsplit(name: str, degrees: dict[shape.Axis, int]) -> None:
    split_group.compare(split_models.ALL[name], degrees, training=True, counted=False)


def test_half_precision_is_kept() -> None:
    plan = split_group.compare(split_models.mixed, {TENSOR: 2}, tolerance=0.05)
    assert {choice.sharding for choice in plan.choices} >= {"column", "row"}


def mlp() -> Any:
    first = keras.Input((6,))
    rows = LAYERS.Dense(8, name="wide")(split_group.Source()(first))
    return keras.Model(first, LAYERS.Dense(4, name="narrow")(rows))


def test_a_column_and_a_row_need_one_sum_each_way() -> None:
    plan = split_group.compare(mlp, {TENSOR: 2})
    assert [choice.sharding for choice in plan.choices] == ["replicated", "column", "row"]
    costs = [cost for choice in plan.choices for cost in choice.costs]
    assert [(cost.kind, cost.work, cost.shape) for cost in costs] == [
        (communication.CollectiveKind.SUM, schedule.Pass.BACKWARD, (None, 6)),
        (communication.CollectiveKind.SUM, schedule.Pass.FORWARD, (None, 4)),
    ]
    assert list(split_traffic.ending(plan)) == []
    assert split_traffic.replicated(plan) == ["source is replicated: there is no rule for Source."]
    parts = [plan.parts({TENSOR: index}) for index in (0, 1)]
    kernel = next(
        key for key, variable in plan.model.variables.items() if "wide/kernel" in variable.path
    )
    assert [part[kernel] for part in parts] == [
        (slice(None), slice(0, 4)),
        (slice(None), slice(4, 8)),
    ]


def twice() -> Any:
    """One layer called on a tensor that is whole, and on one that is cut."""
    layer = LAYERS.Dense(6, name="twice")
    first = keras.Input((6,))
    middle = LAYERS.Dense(6, name="middle")(layer(first))
    return keras.Model(first, layer(LAYERS.Dense(6, name="later")(middle)))


def test_all_calls_of_a_layer_divide_its_weights_alike() -> None:
    plan = split_group.compare(twice, {TENSOR: 2}, counted=False)
    shardings = {choice.node.name: choice.sharding for choice in plan.choices}
    assert shardings["twice"] == shardings["twice#2"] == "column"


def rows_whole() -> Any:
    """Images of which only the channels are divided, on a mesh that could divide the rows."""
    return keras.Sequential(
        [
            keras.Input((7, 6, 2)),
            LAYERS.Conv2D(4, 3, padding="same", name="wide"),
            LAYERS.MaxPooling2D(2, padding="same"),
            LAYERS.UpSampling2D(2),
            LAYERS.BatchNormalization(),
            LAYERS.AveragePooling2D(3, 1, padding="same"),
            LAYERS.GlobalAveragePooling2D(),
        ]
    )


def test_channels_alone_may_be_divided_beside_a_spatial_axis() -> None:
    degrees = {SPATIAL: 2, TENSOR: 2}
    plan = split_group.compare(rows_whole, degrees, overrides={"wide": "filters"}, training=True)
    shardings = {choice.node.name: choice.sharding for choice in plan.choices}
    assert shardings["wide"] == "filters"
    assert shardings["global_average_pooling2d"] == registry.REPLICATED


@pytest.mark.parametrize(
    ("wishes", "pattern"),
    [
        ({"none": "row"}, "has no layer none, .* give one of .*narrow"),
        ({"wide": "heads"}, r"wide \(Dense\) cannot be split by heads: give one of column, row"),
        (
            {"narrow": "column"},
            r"narrow \(Dense\) cannot be split by column: it has 4 units, .* is 5: let",
        ),
    ],
)
def test_wishes_that_cannot_be_granted_are_refused(wishes: dict[str, str], pattern: str) -> None:
    model_graph = recording.record(mlp())
    with pytest.raises(errors.BadConfigurationError, match=pattern):
        split_group.assign(model_graph, {TENSOR: 5}, wishes)


def test_wishes_need_ranks() -> None:
    model_graph = recording.record(mlp())
    with pytest.raises(errors.BadConfigurationError, match=r"row while mesh.tensor is 1: give"):
        split_group.assign(model_graph, {TENSOR: 1}, {"wide": "row"})
    plan = split_group.assign(model_graph, {TENSOR: 1})
    assert {choice.sharding for choice in plan.choices} == {registry.REPLICATED}
    assert split_traffic.replicated(plan) == []


def test_what_is_asked_to_be_whole_is() -> None:
    model_graph = recording.record(mlp())
    plan = split_group.assign(model_graph, {TENSOR: 2}, {"wide": "replicated", "narrow": "row"})
    assert [choice.sharding for choice in plan.choices[1:]] == ["replicated", "row"]
    assert "wide is replicated: this was asked for." in split_traffic.replicated(plan)


def test_a_divided_output_is_exchanged_for_the_loss_and_its_gradient_back() -> None:
    def build() -> Any:
        first = keras.Input((6,))
        return keras.Model(first, LAYERS.Dense(8, name="out")(split_group.Source()(first)))

    def for_loss(degrees: dict[shape.Axis, int], sharding: str) -> list[tuple[Any, Any, int]]:
        replica.forget_names()
        plan = split_group.assign(recording.record(build()), degrees, {"out": sharding})
        (*_, last) = plan.choices
        return [(cost.kind, cost.work, cost.brought(10)) for cost in last.for_loss]

    size = 10 * 4 * 8  # ten examples of four units each, in float64
    exchange, gather = communication.CollectiveKind.EXCHANGE, communication.CollectiveKind.GATHER
    both = [(exchange, work, size) for work in schedule.Pass]
    assert for_loss({TENSOR: 2}, "column") == both
    assert for_loss({TENSOR: 2}, "replicated") == []
    assert for_loss(BOTH, "column") == [(gather, schedule.Pass.FORWARD, size)]


@pytest.mark.parametrize(
    ("overrides", "sums", "gathers"),
    [({}, 2, 0), ({"embedding": "features", "embedding_1": "features"}, 6, 1)],
    ids=["chosen", "features"],
)
def test_what_a_block_of_the_decoder_sends(
    overrides: dict[str, str], sums: int, gathers: int
) -> None:
    module = user.load(paths.EXAMPLES / "split-decoder", "model.py")
    replica.forget_names()
    model = recording.record(skeleton.build(module, 0))
    choices = split_group.assign(model, {TENSOR: 2}, overrides).choices
    names = [choice.node.name for choice in choices]
    block = slice(names.index("layer_normalization_2"), names.index("layer_normalization_4"))
    sent = collections.Counter(
        (cost.kind, cost.work) for choice in choices[block] for cost in choice.costs
    )
    kinds = {communication.CollectiveKind.SUM: sums, communication.CollectiveKind.GATHER: gathers}
    expected = {(kind, work): count for kind, count in kinds.items() for work in schedule.Pass}
    assert sent == collections.Counter(expected)
