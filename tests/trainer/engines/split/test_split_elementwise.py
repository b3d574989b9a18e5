"""Optimizers, constraints and regularisers on parts of variables."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import split_group
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import recording

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
TENSOR = shape.Axis.TENSOR
DIMS = (6, 5)
OPTIMIZERS = sorted(
    {*elementwise.ELEMENTWISE, *elementwise.REASONS},
    key=lambda optimizer_type: optimizer_type.__name__,
)


def trained(kind: type, part: layout.Part) -> Any:
    """A part of a matrix after some steps, with gradients that are parts as well."""
    random = np.random.default_rng(1)
    matrix = keras.Variable(random.normal(size=DIMS)[part], name="matrix")
    optimizer = kind(learning_rate=0.1, weight_decay=0.01)
    optimizer.build([matrix])
    for _ in range(5):
        optimizer.apply([keras.ops.convert_to_tensor(random.normal(size=DIMS)[part])])
    return np.array(matrix)


@pytest.mark.parametrize("dimension", [0, 1])
@pytest.mark.parametrize("kind", OPTIMIZERS, ids=lambda optimizer_type: optimizer_type.__name__)
def test_the_table_says_which_optimizers_work_on_parts(kind: type, dimension: int) -> None:
    cut = layout.cut(2, dimension, layout.even(TENSOR, DIMS[dimension], 2))
    everything = trained(kind, (slice(None),) * 2)
    for index in (0, 1):
        part = cut.part({TENSOR: index})
        alike = np.allclose(trained(kind, part), everything[part], rtol=0, atol=1e-12)
        assert alike == (kind in elementwise.ELEMENTWISE)


def test_every_optimizer_of_keras_is_in_the_table() -> None:
    base = keras.optimizers.Optimizer
    there = {
        optimizer_type
        for optimizer_type in vars(keras.optimizers).values()
        if isinstance(optimizer_type, type)
        and issubclass(optimizer_type, base)
        and optimizer_type is not base
    }
    around = {keras.optimizers.LossScaleOptimizer, keras.optimizers.MultiOptimizer}
    assert there - around == elementwise.ELEMENTWISE | set(elementwise.REASONS)


def model(**options: Any) -> Any:
    first = keras.Input((6,))
    layer = keras.layers.Dense(4, name="split", **options)
    return keras.Model(first, layer(split_group.Source()(first)))


@pytest.mark.parametrize(
    ("make", "pattern"),
    [
        (lambda: keras.optimizers.Lamb(), "Lamb takes the norms .* split/kernel .* mesh.stage"),
        (lambda: keras.optimizers.Muon(), "Muon makes the update .* such as AdamW"),
        (
            lambda: keras.optimizers.MultiOptimizer(
                keras.optimizers.OptimizerMap(keras.optimizers.SGD())
            ),
            "MultiOptimizer is not known to",
        ),
        (
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.Adafactor()),
            "Adafactor takes means",
        ),
    ],
)
def test_optimizers_that_need_more_than_parts_are_refused(
    make: Callable[[], Any], pattern: str
) -> None:
    model_graph = recording.record(model())
    plan = split_group.assign(model_graph, {TENSOR: 2})
    with pytest.raises(errors.UserCodeError, match=pattern):
        elementwise.check_optimizer(make(), model_graph.variables, plan.variables)
    unsplit = split_group.assign(model_graph, {TENSOR: 1})
    elementwise.check_optimizer(make(), model_graph.variables, unsplit.variables)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam())
    elementwise.check_optimizer(scaled, model_graph.variables, plan.variables)


@pytest.mark.parametrize(
    ("options", "shardings", "pattern"),
    [
        ({"kernel_constraint": "non_neg"}, {"column", "row"}, ""),
        ({"kernel_constraint": keras.constraints.MaxNorm(axis=0)}, {"column"}, "MaxNorm of split"),
        ({"kernel_constraint": keras.constraints.UnitNorm(axis=1)}, {"row"}, "UnitNorm of split"),
        ({"kernel_constraint": lambda kernel: kernel * 0.5}, set(), "function of split/kernel"),
        ({"kernel_regularizer": keras.regularizers.L1L2(0.1, 0.1)}, {"column", "row"}, ""),
        (
            {"kernel_regularizer": keras.regularizers.OrthogonalRegularizer()},
            set(),
            "OrthogonalRegularizer of split/kernel is no sum",
        ),
        ({"activity_regularizer": "l2"}, set(), "it has an activity_regularizer"),
    ],
)
def test_what_needs_a_whole_variable_leaves_it_whole(
    options: dict[str, Any], shardings: set[str], pattern: str
) -> None:
    model_graph = recording.record(model(**options))
    chosen = split_group.assign(model_graph, {TENSOR: 2}).choices[-1]
    assert chosen.sharding in (shardings or {registry.REPLICATED})
    if not shardings:
        assert pattern in chosen.why
    for sharding in {"column", "row"} - shardings:
        with pytest.raises(errors.BadConfigurationError, match=pattern):
            split_group.assign(model_graph, {TENSOR: 2}, {"split": sharding})
