"""Ranks along the data axis that each keep the optimizer's state of slices of weights only."""

import functools
import math
import pathlib
import types
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import (
    cases,
    cases_split,
    reference,
    split_models,
    split_ranks,
    split_referee,
)
from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import files, shard, store
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.engines.split.execution import pipeline_steps, ranks, state_sharding
from tfparallel_trainer.engines.split.state import blueprint, persistence
from tfparallel_trainer.storage import folder as folders

pytestmark = [
    *split_models.MARKS,
    pytest.mark.filterwarnings("ignore:Gradients do not exist for variables"),
]
BATCH = 14
STEPS = 7
BATCHES = 3
"""Of an epoch."""
LIMIT = 1e-10
LAYERS = keras.layers
OPTIMIZERS = keras.optimizers
Functions = dict[str, Any]


def model() -> Any:
    """Slices of 7 rows for 2 and 3 ranks; sparse gradients, a constraint and regularizers."""
    tokens = keras.Input((3,), dtype="int64")
    rows = LAYERS.Embedding(7, 5)(tokens)
    tall = LAYERS.Dense(
        7, "tanh", kernel_constraint=keras.constraints.MaxNorm(0.8, axis=0), bias_regularizer="l1"
    )(LAYERS.Flatten()(rows))
    wide = LAYERS.Dense(7, "tanh", kernel_regularizer="l2")(tall)
    return keras.Model(tokens, LAYERS.Dense(2)(wide))


def data() -> Any:
    random = np.random.default_rng(0)
    return random.integers(0, 7, (BATCH * BATCHES, 3)), random.normal(size=(BATCH * BATCHES, 2))


def functions_of(make_optimizer: Any, build: Any = model) -> Functions:
    return {
        "build_model": build,
        "compile_model": lambda built: built.compile(make_optimizer(), "mse"),
        "training_data": data,
    }


def make_steps(
    step: pipeline_steps.PipelineTrainStep, examples: Any, numbers: Sequence[int]
) -> list[float]:
    losses = []
    for number in numbers:
        epoch, position = divmod(number, BATCHES)
        batch = list(examples.epoch(epoch, 0))[position]
        losses.append(step(number, batch, frozenset()).loss)
    return losses


def state_bytes(local_ranks: ranks.Ranks) -> list[int]:
    return [rank.optimizer.state_bytes for rank in local_ranks.local]


CLIPPED = {"none": {}, "global norm": {"global_clipnorm": 0.3}, "norms": {"clipnorm": 0.1}}
KINDS: dict[str, Callable[..., Any]] = {
    kind.__name__: functools.partial(kind, 0.05)
    for kind in (
        OPTIMIZERS.RMSprop,
        OPTIMIZERS.Adam,
        OPTIMIZERS.AdamW,
        OPTIMIZERS.Adamax,
        OPTIMIZERS.Nadam,
        OPTIMIZERS.Adagrad,
        OPTIMIZERS.Adadelta,
        OPTIMIZERS.Ftrl,
        OPTIMIZERS.Lion,
        OPTIMIZERS.ScheduleFreeAdamW,
    )
} | {
    "SGD": functools.partial(OPTIMIZERS.SGD, 0.05, momentum=0.9, weight_decay=0.01),
    "averages": functools.partial(
        OPTIMIZERS.Adam, 0.05, use_ema=True, ema_momentum=0.8, ema_overwrite_frequency=2
    ),
    "kept gradients": functools.partial(OPTIMIZERS.Adam, 0.05, gradient_accumulation_steps=3),
    "scaled loss": lambda **clipping: OPTIMIZERS.LossScaleOptimizer(
        OPTIMIZERS.Adam(0.05, **clipping), initial_scale=1024.0, dynamic_growth_steps=2
    ),
    "values": functools.partial(OPTIMIZERS.RMSprop, 0.05, momentum=0.5, centered=True),
}
MESHES = {
    "data 2": (shape.MeshShape(data=2), 1),
    "data 3": (shape.MeshShape(data=3), 2),
    "data 2 x stage 2": (shape.MeshShape(data=2, stage=2), 2),
    "data 2 x tensor 2": (shape.MeshShape(data=2, tensor=2), 1),
}
RUNS = [(kind, clip, mesh) for kind in KINDS for clip in CLIPPED for mesh in MESHES]
ORDINARY = [
    ("Adam", "global norm", "data 3"),
    ("SGD", "norms", "data 2 x tensor 2"),
    ("averages", "none", "data 2 x stage 2"),
    ("Adagrad", "norms", "data 2"),
]


@pytest.mark.parametrize("run", repeats.some(RUNS, ORDINARY), ids=", ".join)
def test_a_shared_update_equals_a_plain_loop(run: tuple[str, str, str]) -> None:
    kind, clipped, name = run
    mesh, microbatches = MESHES[name]
    functions = functions_of(functools.partial(KINDS[kind], **CLIPPED[clipped]))
    expected, losses = reference.train(types.SimpleNamespace(**functions), STEPS, BATCH, cases.SEED)
    local_ranks, examples, step = split_ranks.prepare_new(
        functions, mesh, microbatches, batch=BATCH, shards_optimizer=True
    )
    assert all(rank.state for rank in local_ranks.local)
    assert make_steps(step, examples, range(STEPS)) == pytest.approx(losses, rel=1e-10)
    difference = cases.difference(cases_split.whole(local_ranks), expected, relative=False)
    assert difference <= LIMIT
    for rank in local_ranks.local:  # each rank has the weights that the first has
        for key, weight in rank.weights.items():
            for other in local_ranks.local:
                if key in other.weights and other.parts[key] == rank.parts[key]:
                    np.testing.assert_array_equal(weight.numpy(), other.weights[key].numpy())


def test_ranks_without_examples_take_part_in_a_shared_update() -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05))
    x, y = data()
    functions["training_data"] = lambda: (x[:16], y[:16])  # the second batch has 2 examples
    expected, losses = reference.train(types.SimpleNamespace(**functions), 4, BATCH, cases.SEED)
    local_ranks, examples, step, _ = prepared(functions, shape.MeshShape(data=3))
    batches = [batch for epoch in (0, 1) for batch in examples.epoch(epoch, 0)]
    trained = [step(number, batch, frozenset()).loss for number, batch in enumerate(batches)]
    assert trained == pytest.approx(losses, rel=1e-10)
    difference = cases.difference(cases_split.whole(local_ranks), expected, relative=False)
    assert difference <= LIMIT


def prepared(
    functions: Functions, mesh: shape.MeshShape, *, shards_optimizer: bool = True
) -> tuple[ranks.Ranks, Any, pipeline_steps.PipelineTrainStep, shard.State]:
    """Ranks and their step, and their state for checkpoints."""
    module = user.Module(pathlib.Path(__file__), functions)
    local_ranks, examples, step = split_ranks.prepare_new(
        functions, mesh, 1, batch=BATCH, shards_optimizer=shards_optimizer
    )
    drawn = blueprint.draw(module, cases.SEED)
    shares = [persistence.share_of(drawn, rank) for rank in local_ranks.local]
    return local_ranks, examples, step, shard.State(shares, drawn.wholes)


@pytest.mark.parametrize(
    "chain",
    repeats.some(
        [
            (
                (shape.MeshShape(data=2), True),
                (shape.MeshShape(data=3), True),
                (shape.MeshShape(), False),
            ),
            (
                (shape.MeshShape(), False),
                (shape.MeshShape(data=3), True),
                (shape.MeshShape(data=2, stage=2), True),
                (shape.MeshShape(data=2), False),
                (shape.MeshShape(data=2, tensor=2), True),
            ),
        ],
        [
            (
                (shape.MeshShape(data=2), True),
                (shape.MeshShape(data=3), True),
                (shape.MeshShape(), False),
            )
        ],
    ),
    ids=len,
)
def test_a_checkpoint_resumes_on_other_meshes(
    chain: tuple[tuple[shape.MeshShape, bool], ...], tmp_path: pathlib.Path
) -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05, use_ema=True))
    saved = store.Store(folders.Folder(tmp_path), 2, "a", 1, lambda _: None)
    for number, (mesh, shards_optimizer) in enumerate(chain):
        local_ranks, examples, step, state = prepared(
            functions, mesh, shards_optimizer=shards_optimizer
        )
        if number:
            assert saved.restore(state) == files.Position(step=2 * number, epoch=0, example=0)
        make_steps(step, examples, range(2 * number, 2 * number + 2))
        saved.save(state, files.Position(step=2 * number + 2, epoch=0, example=0))
    module = types.SimpleNamespace(**functions)
    expected, _ = reference.train(module, 2 * len(chain), BATCH, cases.SEED)
    difference = cases.difference(cases_split.whole(local_ranks), expected, relative=False)
    assert difference <= LIMIT


def test_averages_are_evaluated_and_weights_come_back() -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05, use_ema=True))
    averaged = {}
    for shards_optimizer in (True, False):
        local_ranks, examples, step, _ = prepared(
            functions, shape.MeshShape(data=3), shards_optimizer=shards_optimizer
        )
        make_steps(step, examples, range(3))
        before = cases_split.whole(local_ranks)
        with local_ranks.averaged():
            averaged[shards_optimizer] = [
                [weight.numpy() for weight in rank.weights.values()] for rank in local_ranks.local
            ]
        assert cases.difference(cases_split.whole(local_ranks), before, relative=False) == 0
        assert cases.difference(averaged[shards_optimizer][2], before, relative=False) > 1e-3
    for shared, unshared in zip(averaged[True], averaged[False], strict=True):
        assert cases.difference(shared, unshared, relative=False) <= LIMIT


def test_each_step_is_compared_with_one_process() -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05, global_clipnorm=0.3))
    checks = split_referee.check(
        functions, shape.MeshShape(data=2), batch=BATCH, shards_optimizer=True
    )
    quantities = verification.Quantity
    for check in checks:
        assert {quantities.GRADIENTS, quantities.WEIGHTS} <= check.differences.keys()


def test_a_slice_that_its_rank_updates_wrongly_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    slices = state_sharding.StateSharding.unpack

    def unpack(sharding: Any, row: Any, index: int) -> Any:
        return slices(sharding, row, index) * (2.0 if index else 1.0)

    monkeypatch.setattr(state_sharding.StateSharding, "unpack", unpack)
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05))
    with pytest.raises(errors.VerificationError):
        split_referee.check(functions, shape.MeshShape(data=2), batch=BATCH, shards_optimizer=True)


def even() -> Any:
    return keras.Sequential(
        [keras.Input((3,)), LAYERS.Dense(64, "tanh"), LAYERS.Dense(48, "tanh"), LAYERS.Dense(2)]
    )


@pytest.mark.parametrize("replicas", [2, 4])
def test_a_rank_keeps_its_share_of_the_state(replicas: int) -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.Adam, 0.05), even)
    [whole, *_] = state_bytes(prepared(functions, shape.MeshShape())[0])
    for size in state_bytes(prepared(functions, shape.MeshShape(data=replicas))[0]):
        assert size <= whole / replicas * 1.05


def test_an_optimizer_without_state_updates_whole_weights() -> None:
    functions = functions_of(functools.partial(OPTIMIZERS.SGD, 0.05))
    local_ranks, *_ = prepared(functions, shape.MeshShape(data=2))
    assert not local_ranks.partition.shards_optimizer
    assert not any(rank.state for rank in local_ranks.local)


@pytest.mark.parametrize(
    ("optimizer", "reason"),
    [
        (OPTIMIZERS.Lamb, "takes the norms of each variable and of its update"),
        (OPTIMIZERS.Adafactor, "takes means over each variable"),
        (OPTIMIZERS.Muon, "makes the update of each matrix orthogonal"),
        (type("Own", (OPTIMIZERS.SGD,), {}), "is not known to change each element by itself"),
    ],
)
def test_an_optimizer_of_whole_variables_is_refused(optimizer: type, reason: str) -> None:
    sentence = f"The optimizer {optimizer.__name__} {reason}, and with mesh.shardOptimizer"
    with pytest.raises(errors.UserCodeError, match=sentence):
        prepared(functions_of(functools.partial(optimizer, 0.05)), shape.MeshShape(data=2))


SHAPES = [(7,), (4, 6), (3, 3, 5), (2, 9), (5, 1), (12, 3)]


@pytest.mark.parametrize("replicas", [2, 3, 5])
@pytest.mark.parametrize("dims", SHAPES, ids=str)
def test_slices_make_up_a_variable(dims: tuple[int, ...], replicas: int) -> None:
    variable = keras.Variable(np.arange(math.prod(dims), dtype="float64").reshape(dims))
    sharding = state_sharding.StateSharding.choose(variable, replicas)
    if max(dims) < replicas:
        assert sharding is None
        return
    assert sharding is not None
    packed = sharding.pack(variable.value)
    slices = [sharding.unpack(packed[index], index) for index in range(replicas)]
    for index, part in enumerate(slices):
        np.testing.assert_array_equal(part, variable.numpy()[sharding.slices(index)])
        assert 0 < int(tf.size(part)) <= sharding.share * variable.value.shape.num_elements()
    joined = sharding.join(tf.stack([sharding.pad(part) for part in slices]))
    np.testing.assert_array_equal(joined, variable.numpy())


@pytest.mark.parametrize("dimension", [0, 1])
def test_slices_of_a_sparse_gradient_are_those_of_the_dense_one(dimension: int) -> None:
    sharding = state_sharding.StateSharding((7, 5), dimension, 3)
    random = np.random.default_rng(0)
    rows = tf.constant([6, 0, 3, 3, 6], tf.int64)
    gradient = tf.IndexedSlices(tf.constant(random.normal(size=(5, 5))), rows, tf.constant([7, 5]))
    dense = tf.convert_to_tensor(gradient)
    for index in range(3):
        part = sharding.of_gradient(gradient, index)
        assert isinstance(part, tf.IndexedSlices)
        np.testing.assert_allclose(
            tf.convert_to_tensor(part), dense[sharding.slices(index)], rtol=0, atol=1e-15
        )
