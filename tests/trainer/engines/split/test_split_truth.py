"""A divided model on virtual devices trains as a plain Keras loop in one process does."""

import functools
import types
from typing import Any

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import cases, cases_split, reference, split_models, split_ranks
from testing.trainer.models import truth as models
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.split.pipeline import schedule

pytestmark = split_models.MARKS

STEPS = 12
EVEN, UNEVEN = cases_split.BATCH, cases.BATCH
"""Examples of a batch: that divide those of an epoch, and that leave a smaller batch at its end."""

ONE = split_ranks.ONE
Functions = dict[str, Any]


def trained(
    functions: Functions,
    mesh: shape.MeshShape,
    microbatches: int,
    order: schedule.Schedule = ONE,
    batch: int = EVEN,
) -> tuple[list[Any], list[engine.StepResult]]:
    """The weights after some steps, put together from their parts, and what the steps gave."""
    replicas, examples, step = split_ranks.prepare_new(functions, mesh, microbatches, order, batch)
    outcomes: list[engine.StepResult] = []
    for epoch in range(STEPS):
        for part in examples.epoch(epoch, 0):
            if len(outcomes) < STEPS:
                outcomes.append(step(len(outcomes), part, frozenset()))
    return cases_split.whole(replicas), outcomes


def difference(
    functions: Functions,
    mesh: shape.MeshShape,
    microbatches: int,
    order: schedule.Schedule = ONE,
    batch: int = EVEN,
) -> float:
    """The largest difference of a weight from that of a plain loop over whole batches."""
    module = types.SimpleNamespace(**functions)
    expected, losses = reference.train(module, STEPS, batch, cases.SEED)
    weights, outcomes = trained(functions, mesh, microbatches, order, batch)
    assert [outcome.loss for outcome in outcomes] == pytest.approx(losses, rel=1e-10)
    return cases.difference(weights, expected, relative=False)


CASES = [case for case in cases.CASES if "Normalization" not in case.model]
DEAR = ("CNN", "LSTM", "Transformer")
"""Models that take long to trace: a batch of another size is traced in the long tier only."""

RUNS = [(case, batch) for case in CASES for batch in (EVEN, UNEVEN)]
ORDINARY = [
    (case, EVEN if case.model in DEAR else UNEVEN)
    for case in CASES
    if case.optimizer == "Adam" and case.model != "LSTM"
]
"""Another mesh has the LSTM."""


@pytest.mark.parametrize(
    "run", repeats.some(RUNS, ORDINARY), ids=lambda run: f"{run[0].name}-{run[1]}"
)
def test_stages_on_two_places_of_the_data_axis_equal_a_plain_loop(
    run: tuple[cases.Case, int],
) -> None:
    case, batch = run
    functions = case.functions(synchronized=False)
    mesh = shape.MeshShape(data=2, stage=2)
    assert difference(functions, mesh, 3, batch=batch) <= case.limit


@pytest.mark.parametrize("batch", repeats.some([EVEN, UNEVEN], [EVEN]))
@pytest.mark.parametrize(
    ("model", "mesh", "microbatches"),
    [
        ("MLP, Adam", shape.MeshShape(stage=3), 4),
        ("MLP, SGD momentum", shape.MeshShape(data=2), 2),
        ("MLP, SGD momentum", shape.MeshShape(tensor=2), 2),
        ("MLP, SGD momentum", shape.MeshShape(stage=2, tensor=2), 2),
        ("Transformer, Adam", shape.MeshShape(stage=2, tensor=2), 2),
        ("CNN, SGD momentum", shape.MeshShape(spatial=2, tensor=2), 2),
        ("CNN, Adam", shape.MeshShape(stage=2, spatial=2), 2),
        ("LSTM, Adam", shape.MeshShape(data=2, tensor=2), 2),
    ],
)
def test_other_meshes_equal_a_plain_loop(
    model: str, mesh: shape.MeshShape, microbatches: int, batch: int
) -> None:
    case = next(case for case in cases.CASES if case.name == model)
    functions = case.functions(synchronized=False)
    assert difference(functions, mesh, microbatches, schedule.gpipe, batch) <= case.limit


def functions_of(build: Any, loss: Any, data: Any, **compiled: Any) -> Functions:
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9, **compiled), loss
        ),
        "training_data": lambda: data,
    }


def test_layers_split_in_the_three_ways_equal_a_plain_loop() -> None:
    case = next(case for case in cases.CASES if case.name == "CNN, SGD momentum")
    shardings = {"conv2d": "rows", "conv2d_1": "filters", "dense": "data"}
    functions = {**case.functions(synchronized=False), "layer_shardings": lambda: shardings}
    mesh = shape.MeshShape(spatial=2, tensor=2)
    split_replicas, _, _ = split_ranks.prepare_new(functions, mesh, 1)
    chosen = {choice.node.name: choice.sharding for choice in split_replicas.partition.plan.choices}
    assert shardings.items() <= chosen.items()
    assert difference(functions, mesh, 1) <= case.limit


def tied() -> Any:
    """A table that the first stage reads as an embedding and the last one as a dense layer."""
    table = split_models.LAYERS.Embedding(7, 4)
    tokens = keras.Input((3,), dtype="int64")
    rows = split_models.LAYERS.Dense(4, "tanh")(table(tokens))
    again = split_models.LAYERS.Dense(4, "tanh")(table(tokens[:, ::-1]))
    return keras.Model(tokens, split_models.LAYERS.Dense(2)(rows * again))


def test_weights_that_stages_share_stay_equal() -> None:
    random = np.random.default_rng(0)
    data = (random.integers(0, 7, (42, 3)), random.normal(size=(42, 3, 2)))
    functions = functions_of(tied, "mse", data, clipvalue=0.5)
    assert difference(functions, shape.MeshShape(stage=3), 2) <= 1e-10
    split_replicas, examples, step = split_ranks.prepare_new(functions, shape.MeshShape(stage=3), 2)
    step(0, next(iter(examples.epoch(0, 0))), frozenset())
    lent = {key for member in split_replicas.local for key, _ in member.stage.borrowed}
    assert lent
    for key in lent:
        first, *others = [
            np.array(member.weights[key].value)
            for member in split_replicas.local
            if key in member.weights
        ]
        assert others
        assert all(np.array_equal(first, other) for other in others)


def test_each_stage_holds_only_its_weights_and_slots() -> None:
    case = cases.CASES[1]
    split_replicas, _, _ = split_ranks.prepare_new(
        case.functions(synchronized=False), shape.MeshShape(stage=3), 2
    )
    keys = [set(member.weights) for member in split_replicas.local]
    assert all(keys)
    assert len(set.union(*keys)) == sum(map(len, keys))
    for member in split_replicas.local:
        on = {slot.value.device.rpartition("device:")[2] for slot in member.optimizer.variables}
        on |= {weight.value.device.rpartition("device:")[2] for weight in member.weights.values()}
        assert on == {f"CPU:{member.index}"}


def test_flags_of_a_rank_without_loss_reach_all() -> None:
    case = cases.CASES[0]
    _, examples, step = split_ranks.prepare_new(
        case.functions(synchronized=False), shape.MeshShape(stage=2), 2
    )
    batch = next(iter(examples.epoch(0, 0)))
    assert step(0, batch, frozenset({engine.StepRequest.STOP})).requests == {
        engine.StepRequest.STOP
    }
    assert step(1, batch, frozenset()).requests == frozenset()


def bounded() -> Any:
    return keras.Sequential(
        [
            keras.Input((5,)),
            split_models.LAYERS.Dense(8, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.8)),
            split_models.LAYERS.Dense(8, "tanh", kernel_regularizer="l2"),
            split_models.LAYERS.Dense(2),
        ]
    )


@pytest.mark.parametrize(
    "mesh", [shape.MeshShape(data=2, stage=2), shape.MeshShape(stage=2, tensor=2)]
)
def test_accumulation_counts_steps_as_keras_does(mesh: shape.MeshShape) -> None:
    random = np.random.default_rng(0)
    data = (random.normal(size=(42, 5)), random.normal(size=(42, 2)))
    optimizer = functools.partial(
        keras.optimizers.Adam,
        keras.optimizers.schedules.ExponentialDecay(0.1, 5, 0.5),
        weight_decay=0.01,
        use_ema=True,
        ema_momentum=0.9,
        ema_overwrite_frequency=2,
        gradient_accumulation_steps=3,
        global_clipnorm=0.1,
    )
    functions = functions_of(bounded, "mse", data)
    functions["compile_model"] = lambda model: model.compile(optimizer(), "mse")
    assert difference(functions, mesh, 2) <= 1e-10


class Chosen(keras.Model):
    """A model whose calls are not a graph."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


@pytest.mark.parametrize(
    ("build", "mesh", "sentence"),
    [
        (models.mlp, shape.MeshShape(stage=4), "mesh.stage is 4, but the model makes"),
        (Chosen, shape.MeshShape(stage=2), "there is no graph of layers that could be split"),
    ],
)
def test_what_cannot_be_divided_is_refused(
    build: Any, mesh: shape.MeshShape, sentence: str
) -> None:
    case = cases.CASES[0]
    functions = {**case.functions(synchronized=False), "build_model": build}
    with pytest.raises(errors.TrainerError, match=sentence):
        split_ranks.prepare_new(functions, mesh, 2)
