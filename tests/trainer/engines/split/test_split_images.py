"""Layers whose rows are divided over the spatial axis, each against itself unsplit."""

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st

from testing.trainer import split_group
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, sharded
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import recording
from tfparallel_trainer.engines.split.planning import shardings

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
# Each example is traced: of each layer few in the ordinary run, many new ones in the long tier.
few = settings(
    max_examples=settings().max_examples // 10,
    phases=[Phase.explicit, Phase.generate],
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR
LAYERS = keras.layers

heights = st.integers(4, 13)
spatial = st.integers(2, 4)
lengths = st.integers(1, 3)
strides = st.integers(1, 3)
paddings = st.sampled_from(["same", "valid"])


def of_layer(dims: tuple[int, ...], make: Callable[[], Any]) -> Any:
    """A model whose rows are divided before the layer, and which has a gradient there."""
    first = keras.Input(dims)
    rank = len(dims) - 1
    start = getattr(LAYERS, f"Conv{rank}D")(dims[-1], 1, name="start")
    layer = make()
    layer.name = "split"
    return keras.Model(first, layer(start(split_group.Source()(first))))


def compare(
    build: Callable[[], Any], degrees: dict[shape.Axis, int], sharding: str = "rows", **options: Any
) -> assignment.Assignment:
    plan = split_group.compare(
        build, degrees, overrides={"split": sharding}, counted=False, **options
    )
    assert all(choice.sharding != registry.REPLICATED for choice in plan.choices[1:])
    return plan


def fits(dims: tuple[int, ...], make: Callable[[], Any], ranks: int) -> None:
    """Drop examples that Keras cannot compute, and those with fewer rows of output than ranks."""
    try:
        output_shape = make()(keras.ops.zeros((1, *dims))).shape
    except (ValueError, tf.errors.InvalidArgumentError):
        assume(False)
    assume(min(output_shape[1:]) > 0 and min(output_shape[1], dims[0]) >= ranks)


def run_or_refuse(
    dims: tuple[int, ...], make: Callable[[], Any], ranks: int, sharding: str, **options: Any
) -> None:
    """Compare; a halo that is wider than a shard is refused instead, by the name of the layer."""
    degrees = {SPATIAL: ranks} | ({TENSOR: 2} if sharding == "rows and filters" else {})
    try:
        compare(lambda: of_layer(dims, make), degrees, sharding, **options)
    except errors.BadConfigurationError as error:
        assert "wider than a shard" in str(error)
        assert "The layer split (" in str(error)


def is_shifted(rank: int, length: int, stride: int, padding: str) -> bool:
    """Whether TensorFlow itself computes a convolution in 64 bits wrongly on a CPU.

    Its windows over a volume begin too late where the padding would be negative.
    """
    return rank == 3 and padding == "same" and stride - length > 1


@few
@given(
    rank=st.integers(1, 3),
    height=heights,
    count=spatial,
    length=st.integers(1, 5),
    stride=strides,
    dilation=st.integers(1, 2),
    padding=paddings,
    activation=st.sampled_from([None, "tanh", "softmax"]),
    bias=st.booleans(),
)
def test_convolutions(
    rank: int,
    height: int,
    count: int,
    length: int,
    stride: int,
    dilation: int,
    padding: str,
    activation: str | None,
    bias: bool,
) -> None:
    assume(stride == 1 or dilation == 1)
    assume(not is_shifted(rank, length, stride, padding))
    dims = (height, *[5, 4][: rank - 1], 2)

    def make() -> Any:
        return getattr(LAYERS, f"Conv{rank}D")(
            3,
            (length, 2, 3)[:rank],
            strides=(stride, *[1 if dilation > 1 else 2, 1][: rank - 1]),
            dilation_rate=dilation,
            padding=padding,
            activation=activation,
            use_bias=bias,
        )

    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows")


@few
@given(
    rank=st.integers(1, 2),
    kind=st.sampled_from(["Depthwise", "Separable"]),
    height=heights,
    count=spatial,
    length=lengths,
    stride=strides,
    dilation=st.integers(1, 2),
    padding=paddings,
)
def test_depthwise_and_separable_convolutions(
    rank: int,
    kind: str,
    height: int,
    count: int,
    length: int,
    stride: int,
    dilation: int,
    padding: str,
) -> None:
    assume(stride == 1 or dilation == 1)
    dims = (height, *[5][: rank - 1], 2)
    more = {"filters": 3} if kind == "Separable" else {}

    def make() -> Any:
        return getattr(LAYERS, f"{kind}Conv{rank}D")(
            kernel_size=(length, 2)[:rank],
            strides=stride,
            dilation_rate=dilation,
            padding=padding,
            depth_multiplier=2,
            **more,
        )

    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows")


def transposed(rank: int, length: int, **options: Any) -> Any:
    return getattr(LAYERS, f"Conv{rank}DTranspose")(3, (length, 2, 2)[:rank], **options)


@few
@given(
    rank=st.integers(1, 3),
    height=st.integers(4, 9),
    count=spatial,
    length=st.integers(1, 4),
    stride=strides,
    padding=paddings,
    more=st.integers(0, 2) | st.none(),
)
def test_transposed_convolutions(
    rank: int, height: int, count: int, length: int, stride: int, padding: str, more: int | None
) -> None:
    assume(more is None or more < stride)
    assume(not is_shifted(rank, length, stride, padding))
    dims = (height, *[3, 2][: rank - 1], 2)

    def make() -> Any:
        return transposed(rank, length, strides=stride, padding=padding, output_padding=more)

    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows")


@few
@given(
    rank=st.integers(1, 2),
    height=st.integers(4, 9),
    count=spatial,
    length=st.integers(1, 3),
    padding=paddings,
)
def test_dilated_transposed_convolutions(
    rank: int, height: int, count: int, length: int, padding: str
) -> None:
    """TensorFlow dilates them on a CPU in 32 bits alone, and not in three dimensions."""
    keras.config.set_floatx("float32")
    keras.config.set_dtype_policy("float32")
    dims = (height, *[3, 2][: rank - 1], 2)

    def make() -> Any:
        return transposed(rank, length, dilation_rate=2, padding=padding)

    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows", tolerance=1e-5)


@few
@given(height=heights, count=spatial, length=lengths, dilation=st.integers(1, 2))
def test_causal_convolutions(height: int, count: int, length: int, dilation: int) -> None:
    def make() -> Any:
        return LAYERS.Conv1D(3, length, dilation_rate=dilation, padding="causal")

    run_or_refuse((height, 2), make, count, "rows")


@few
@given(
    kind=st.sampled_from(["Conv2D", "SeparableConv2D", "Conv2DTranspose"]),
    height=heights,
    length=lengths,
    stride=strides,
    padding=paddings,
)
def test_rows_and_filters_together(
    kind: str, height: int, length: int, stride: int, padding: str
) -> None:
    dims = (height, 4, 2)

    def make() -> Any:
        return getattr(LAYERS, kind)(3, length, strides=stride, padding=padding)

    fits(dims, make, 2)
    run_or_refuse(dims, make, 2, "rows and filters")


@few
@given(
    rank=st.integers(1, 3),
    mode=st.sampled_from(["Max", "Average"]),
    height=heights,
    count=spatial,
    length=st.integers(1, 4),
    stride=strides,
    padding=paddings,
)
def test_pooling(
    rank: int, mode: str, height: int, count: int, length: int, stride: int, padding: str
) -> None:
    dims = (height, *[5, 4][: rank - 1], 2)

    def make() -> Any:
        layer = getattr(LAYERS, f"{mode}Pooling{rank}D")
        return layer((length, 2, 2)[:rank], (stride, 2, 1)[:rank], padding, dtype=dtype)

    # TensorFlow cannot pool volumes of float64 on a CPU.
    dtype, tolerance = ("float32", 1e-5) if rank == 3 else (None, 1e-10)
    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows", tolerance=tolerance)


@few
@given(
    rank=st.integers(1, 3),
    mode=st.sampled_from(["Max", "Average"]),
    height=heights,
    count=spatial,
    keeps=st.booleans(),
)
def test_pooling_of_all_rows(rank: int, mode: str, height: int, count: int, keeps: bool) -> None:
    dims = (height, *[3, 2][: rank - 1], 2)
    layer = getattr(LAYERS, f"Global{mode}Pooling{rank}D")
    compare(lambda: of_layer(dims, lambda: layer(keepdims=keeps)), {SPATIAL: count})


def test_the_gradient_of_a_largest_number_is_shared_by_all_that_are_it() -> None:
    def build() -> Any:
        first = keras.Input((7, 3, 2))
        none = LAYERS.Conv2D(2, 1, name="start")(split_group.Source()(first)) * 0.0
        return keras.Model(first, LAYERS.GlobalMaxPooling2D(name="split")(none))

    plan = split_group.compare(build, {SPATIAL: 3}, overrides={"start": "rows"}, counted=False)
    assert plan.choices[1].sharding == "rows"


@few
@given(
    rank=st.integers(1, 3),
    height=heights,
    count=spatial,
    before=st.integers(0, 3),
    after=st.integers(0, 3),
    kind=st.sampled_from(["ZeroPadding", "Cropping"]),
)
def test_padding_and_cropping(
    rank: int, height: int, count: int, before: int, after: int, kind: str
) -> None:
    dims = (height, *[5, 4][: rank - 1], 2)
    sides: Any = ((before, after), (1, 0), (0, 1))[:rank] if rank > 1 else (before, after)

    def make() -> Any:
        return getattr(LAYERS, f"{kind}{rank}D")(sides)

    fits(dims, make, count)
    run_or_refuse(dims, make, count, "rows")


@few
@given(rank=st.integers(1, 3), height=heights, count=spatial, factor=st.integers(1, 4))
def test_upsampling(rank: int, height: int, count: int, factor: int) -> None:
    dims = (height, *[3, 2][: rank - 1], 2)
    size: Any = (factor, 2, 1)[:rank] if rank > 1 else factor
    layer = getattr(LAYERS, f"UpSampling{rank}D")
    compare(lambda: of_layer(dims, lambda: layer(size)), {SPATIAL: count})


@few
@given(
    rank=st.integers(1, 3),
    height=heights,
    count=spatial,
    plain=st.booleans(),
    training=st.booleans(),
)
def test_batch_normalization(
    rank: int, height: int, count: int, plain: bool, training: bool
) -> None:
    dims = (height, *[3, 2][: rank - 1], 3)

    def make() -> Any:
        return LAYERS.BatchNormalization(momentum=0.7, scale=plain, center=not plain)

    compare(lambda: of_layer(dims, make), {SPATIAL: count}, training=training, tolerance=1e-9)


@few
@given(height=heights, count=spatial, groups=st.sampled_from([1, 2, 4, -1]), plain=st.booleans())
def test_group_normalization(height: int, count: int, groups: int, plain: bool) -> None:
    def make() -> Any:
        return LAYERS.GroupNormalization(groups, scale=plain, center=not plain)

    compare(lambda: of_layer((height, 3, 4), make), {SPATIAL: count}, tolerance=1e-9)


@few
@given(
    height=heights,
    count=spatial,
    axis=st.sampled_from([1, (1, 2), (1, 2, 3), (1, 3)]),
    plain=st.booleans(),
)
def test_layer_normalization_over_rows(height: int, count: int, axis: Any, plain: bool) -> None:
    def make() -> Any:
        return LAYERS.LayerNormalization(axis, scale=plain, center=not plain)

    plan = compare(
        lambda: of_layer((height, 3, 2), make), {SPATIAL: count}, sharding="parts", tolerance=1e-9
    )
    assert all(plan.variables[key].layout.cuts for key in plan.choices[-1].node.variables)


@pytest.mark.parametrize(
    "make",
    [
        lambda: LAYERS.BatchNormalization(momentum=0.7),
        lambda: LAYERS.MaxPooling2D(2),
        lambda: LAYERS.AveragePooling2D(3, 1, "same"),
        lambda: LAYERS.GlobalMaxPooling2D(),
        lambda: LAYERS.GlobalAveragePooling2D(),
        lambda: LAYERS.ZeroPadding2D(1),
        lambda: LAYERS.UpSampling2D(2),
    ],
)
def test_channels_may_be_divided_as_well(make: Callable[[], Any]) -> None:
    def build() -> Any:
        first = keras.Input((6, 4, 2))
        start = LAYERS.Conv2D(3, 3, name="start")(split_group.Source()(first))
        layer = make()
        layer.name = "split"
        return keras.Model(first, layer(start))

    plan = split_group.compare(build, {SPATIAL: 2, TENSOR: 2}, training=True, counted=False)
    assert [choice.sharding for choice in plan.choices[1:]] == ["rows and filters", "rows"]
    assert plan.layouts[plan.choices[1].node.outputs[0]].cuts[-1] is not None


PLACES: dict[str, Callable[[], Any]] = {
    "dense": lambda: LAYERS.Dense(3, activation="softmax"),
    "prelu": lambda: LAYERS.PReLU(alpha_initializer="ones", shared_axes=[1]),
    "unit normalization": lambda: LAYERS.UnitNormalization(axis=-1),
    "layer normalization": LAYERS.LayerNormalization,
    "layer normalization over rows": lambda: LAYERS.LayerNormalization((1, 2)),
    "activation": lambda: LAYERS.Activation("tanh"),
    "softmax": LAYERS.Softmax,
    "dropout": lambda: LAYERS.Dropout(0.4, seed=1),
    "spatial dropout": lambda: LAYERS.SpatialDropout2D(0.4, seed=1),
}


@pytest.mark.parametrize("name", PLACES)
def test_layers_that_compute_each_place_by_itself(name: str) -> None:
    plan = split_group.compare(
        lambda: of_layer((7, 3, 2), PLACES[name]), {SPATIAL: 3}, training=True, counted=False
    )
    assert plan.choices[-1].sharding != registry.REPLICATED
    assert plan.layouts[plan.choices[-1].node.outputs[0]].cuts[1] is not None


def test_spatial_dropout_drops_a_channel_on_all_ranks() -> None:
    model_graph = recording.record(
        of_layer((6, 3, 8), lambda: LAYERS.SpatialDropout2D(0.5, seed=1))
    )
    plan = split_group.assign(model_graph, {SPATIAL: 3})
    values_by_key = {
        key: tf.constant(variable.value) for key, variable in model_graph.variables.items()
    }
    (output,) = model_graph.output_tensors()

    def run(rank: split_group.Rank) -> Any:
        given_image = {0: tf.random.stateless_normal((3, 6, 3, 8), (1, 2), dtype=tf.float64)}
        part = sharded.run_nodes(
            plan, model_graph.nodes, given_image, values_by_key, True, rank.groups, leaving=[output]
        )
        return sharded.outputs(plan, {output: part.tensors[output]}, rank.groups)[output]

    image, *_ = split_group.together(split_group.ranks({SPATIAL: 3}), run)
    dropped = image.numpy() == 0.0
    assert 0 < dropped.mean() < 1
    assert (dropped.all((1, 2)) == dropped.any((1, 2))).all()


def test_an_axis_that_divides_nothing_is_refused() -> None:
    def build() -> Any:
        first = keras.Input((3, 3, 2))
        return keras.Model(first, LAYERS.Conv2D(2, 3, padding="same", name="split")(first))

    split_group.assign(recording.record(build()), {SPATIAL: 3})
    plan = split_group.assign(recording.record(build()), {SPATIAL: 4})
    with pytest.raises(
        errors.BadConfigurationError,
        match=r"mesh.spatial is 4, but no layer of the model can be divided over it \(its input "
        r"has 3 rows, and mesh.spatial is 4: let there be at least as many rows",
    ):
        shardings.check(plan.choices, plan.degrees)


@pytest.mark.parametrize("axis", [SPATIAL, TENSOR])
@pytest.mark.parametrize("training", [False, True])
def test_features_are_no_rows_to_a_normalisation(axis: shape.Axis, training: bool) -> None:
    def build() -> Any:
        image = keras.Input((8, 6, 2))
        x = LAYERS.Flatten()(LAYERS.Conv2D(4, 3, padding="same", activation="tanh")(image))
        x = LAYERS.BatchNormalization(momentum=0.7)(x)
        x = LAYERS.BatchNormalization(momentum=0.7)(LAYERS.Dense(6, activation="tanh")(x))
        return keras.Model(image, LAYERS.Dense(2)(LAYERS.GroupNormalization(2)(x)))

    split_group.compare(build, {axis: 2}, training=training)
