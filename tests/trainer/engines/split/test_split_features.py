"""What models have besides layers, divided over a mesh, against one process."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, ranks, reference
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.contract import environment

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
EXAMPLES = 70
STEPS = 8
LAYERS = keras.layers
TENSOR = cases_split.MeshLayout({"tensor": 2}, 2)
BOTH = cases_split.MeshLayout({"stage": 2, "tensor": 2}, 2)
ALONE = cases_split.MeshLayout({}, 2)

Result = tuple[list[Any], list[float]]
"""Weights, and the loss of each step."""


def case_of(
    build: Callable[[], Any], loss: Any, data: Any, optimizer: Any, **arguments: Any
) -> cases.Case:
    make_optimizer = functools.partial(optimizer, **arguments)
    return cases.Case("", "", "", lambda _: build(), loss, lambda: data, make_optimizer)


def train(case: cases.Case, layout: cases_split.MeshLayout, **options: bool) -> Result:
    return cases_split.train(case, layout, ranks.generation(), STEPS, **options)


def compare(case: cases.Case, layout: cases_split.MeshLayout, **options: bool) -> None:
    """See that a mesh gives the weights and the losses of a plain loop."""
    with cases.precision("float64"):
        expected, losses = cases_split.train_plainly(case, layout, STEPS, **options)
        actual, actual_losses = train(case, layout)
    assert cases.difference(actual, expected, relative=False) <= case.limit
    assert actual_losses == pytest.approx(losses, rel=1e-10)


@contextlib.contextmanager
def mixed(policy: str) -> Iterator[None]:
    with cases.precision("float32"):
        keras.config.set_dtype_policy(policy)
        yield


def random(*shape: int) -> Any:
    return np.random.default_rng(list(shape)).normal(size=(EXAMPLES, *shape))


def integers(below: int, *shape: int) -> Any:
    return np.random.default_rng(below).integers(0, below, size=(EXAMPLES, *shape))


def classes(y: Any, logits: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True)


def wide() -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            LAYERS.Dense(12, "tanh"),
            LAYERS.Dense(8, "tanh"),
            LAYERS.Dense(3, dtype="float32"),
        ]
    )


def scaled(initial_scale: float) -> Any:
    inner = keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=0.5)
    return keras.optimizers.LossScaleOptimizer(inner, initial_scale=initial_scale)


NUMBERS = (random(6), integers(3))


@pytest.mark.parametrize(
    ("policy", "optimizer", "tolerance"),
    [
        ("mixed_float16", functools.partial(scaled, 2.0**8), 1e-3),
        ("mixed_bfloat16", functools.partial(keras.optimizers.Adam, 0.01), 1e-2),
    ],
)
def test_half_precision_trains_as_one_process_does(
    policy: str, optimizer: Any, tolerance: float
) -> None:
    case = case_of(wide, classes, NUMBERS, optimizer)
    with mixed(policy):
        expected, losses = cases_split.train_plainly(case, BOTH, STEPS)
        actual, actual_losses = train(case, BOTH)
    with cases.precision("float32"):
        exact, _ = cases_split.train_plainly(case, BOTH, STEPS)
    assert cases.difference(actual, expected, relative=True) <= tolerance
    assert cases.difference(expected, exact, relative=True) > 1e-5  # so it was half precision
    assert actual_losses == pytest.approx(losses, rel=tolerance)
    assert losses[-1] < losses[0]


def test_what_overflows_halves_the_scale_and_changes_nothing() -> None:
    case = case_of(wide, classes, NUMBERS, functools.partial(scaled, 2.0**30))
    with mixed("mixed_float16"):
        expected, _ = cases_split.train_plainly(case, BOTH, 0)
        split_replicas, examples, step = cases_split.prepare(case, BOTH, ranks.generation())
        for number, batch in zip(range(3), examples.epoch(0, 0), strict=False):
            step(number, batch, frozenset())
    assert cases.difference(cases_split.whole(split_replicas), expected, relative=False) == 0
    scales = [
        float(actual_losses.optimizer.keras_optimizer.dynamic_scale)
        for actual_losses in split_replicas.local
    ]
    assert scales == [2.0**27] * 4


def tied() -> Any:
    """A table that the first layer reads rows of and the last one multiplies by."""
    table = LAYERS.ReversibleEmbedding(11, 8)
    tokens = keras.Input((5,), dtype="int64")
    states = LAYERS.Dense(8, "tanh")(LAYERS.Dense(6, "tanh")(table(tokens)))
    return keras.Model(tokens, table(states, reverse=True))


def test_an_embedding_that_is_the_head_too() -> None:
    tokens = integers(11, 5)
    data = (tokens, np.roll(tokens, 1, 1))
    optimizer = functools.partial(keras.optimizers.SGD, 0.1, momentum=0.9, global_clipnorm=0.3)
    compare(case_of(tied, classes, data, optimizer), BOTH)


class WrittenModule(cases.Case):
    """A user's module."""

    def functions(self, *, synchronized: bool) -> dict[str, Any]:
        return dict(vars(reference.load(self.model)))


def test_dropout_is_that_of_one_process_where_that_is_asked_for(runs: trainings.Runs) -> None:
    case = WrittenModule(
        "dropping", "", "", lambda _: None, None, lambda: None, functools.partial(dict)
    )
    run = runs.finish(
        "dropping.py",
        steps=STEPS,
        seed=cases.SEED,
        globalBatchSize=cases_split.BATCH,
        devices=2,
        strategy="ModelSplit",
        mesh={**TENSOR.degrees, "microbatches": TENSOR.microbatches},
        step_log=True,
        variables={environment.SAME_DROPOUT: "1"},
    )
    with cases.precision("float64"):
        expected, losses = train(case, ALONE)
        _, plain = cases_split.train_plainly(case, ALONE, STEPS)
        same, _ = train(case, BOTH, same_dropout=True)
        fast, actual_losses = train(case, TENSOR)
        again, own_again = train(case, TENSOR)
    assert run.losses() == pytest.approx(losses, rel=1e-10)
    assert cases.difference(same, expected, relative=False) <= case.limit
    assert cases.difference(fast, expected, relative=False) > 1e-3
    assert cases.difference(again, fast, relative=False) == 0
    assert own_again == actual_losses
    assert plain != pytest.approx(losses, rel=1e-3)  # Keras draws other masks


def regularised() -> Any:
    first = keras.Input((6,))
    states = LAYERS.Dense(
        12, "tanh", kernel_regularizer=keras.regularizers.L1L2(0.01, 0.02), bias_regularizer="l2"
    )(first)
    states = LAYERS.Dense(8, "tanh", activity_regularizer=keras.regularizers.L2(0.01))(states)
    last = LAYERS.Dense(3, kernel_regularizer="l1")
    return keras.Model(first, last(states))


def test_regularisers_of_weights_and_of_outputs() -> None:
    case = case_of(regularised, classes, NUMBERS, functools.partial(keras.optimizers.SGD, 0.1))
    compare(case, BOTH, sees_microbatches=True)


class WeightedOutputs(cases.Case):
    """Outputs whose losses count differently."""

    def functions(self, *, synchronized: bool) -> dict[str, Any]:
        def compile_model(model: Any) -> None:
            weights = {"value": 0.3, "kind": 2.0}
            model.compile(self.make_optimizer(), self.loss, loss_weights=weights)

        return {**super().functions(synchronized=synchronized), "compile_model": compile_model}


def several() -> Any:
    """An output of the first layers and one of the last, from two inputs of other types."""
    deep, tokens = keras.Input((4,), name="deep"), keras.Input((3,), dtype="int64", name="tokens")
    states = LAYERS.Dense(8, "tanh")(deep)
    value = LAYERS.Dense(1, name="value")(states)
    read = LAYERS.Flatten()(LAYERS.Embedding(9, 4)(tokens))
    both = LAYERS.Dense(6, "tanh")(LAYERS.Concatenate()([states, read]))
    kind = LAYERS.Dense(3, "softmax", name="kind")(both)
    return keras.Model({"deep": deep, "tokens": tokens}, {"value": value, "kind": kind})


def test_outputs_of_several_stages_whose_losses_have_weights() -> None:
    x = {"deep": random(4), "tokens": integers(9, 3)}
    y = {"value": random(1), "kind": integers(3)}
    loss = {"value": "mse", "kind": "sparse_categorical_crossentropy"}
    case_of_features = case_of(
        several, loss, (x, y), functools.partial(keras.optimizers.Adam, 0.01)
    )
    case = WeightedOutputs(
        "",
        "",
        "",
        case_of_features.build,
        case_of_features.loss,
        case_of_features.data,
        case_of_features.make_optimizer,
    )
    compare(case, BOTH)


def certain(units: int, activation: str) -> Any:
    """Probabilities that are nearly 0 or 1; Keras takes the loss from what they come from."""
    first = keras.Input((6,))
    states = LAYERS.Dense(12, "tanh")(first)
    return keras.Model(first, LAYERS.Dense(units, activation, kernel_initializer=_LARGE)(states))


_LARGE = keras.initializers.RandomUniform(-60.0, 60.0, seed=1)


@pytest.mark.parametrize(
    ("units", "activation", "loss"),
    [(3, "softmax", "sparse_categorical_crossentropy"), (8, "sigmoid", "binary_crossentropy")],
)
def test_the_loss_of_what_is_nearly_certain(units: int, activation: str, loss: str) -> None:
    y = integers(3) if activation == "softmax" else integers(2, units)
    optimizer = functools.partial(keras.optimizers.SGD, 0.01)
    case = case_of(lambda: certain(units, activation), loss, (random(6), y), optimizer)
    compare(case, BOTH)
    with cases.precision("float64"):
        _, losses = cases_split.train_plainly(case, BOTH, 1)
    assert losses[0] > -np.log(1e-7) / 2


def test_normalisation_of_parts_of_unequal_size() -> None:
    case = next(case for case in cases.CASES if case.name == f"{cases_split.NORMALISED}, Adam")
    layout = cases_split.MeshLayout({"data": 3, "stage": 2}, 2)
    assert [len(microbatch) for microbatch in cases_split.microbatches(layout)] == [8, 6]
    compare(case, layout)


def normalised(synchronized: bool) -> Any:
    return keras.Sequential(
        [
            keras.Input((6,)),
            LAYERS.Dense(5, "tanh"),
            LAYERS.BatchNormalization(momentum=0.7, synchronized=synchronized),
            LAYERS.Dense(3, "softmax"),
        ]
    )


def test_normalisation_where_some_places_have_too_few_examples_for_all_microbatches() -> None:
    adam = functools.partial(keras.optimizers.Adam, 0.01)
    data = (random(6), integers(3))
    case = cases.Case("", "", "", normalised, "sparse_categorical_crossentropy", lambda: data, adam)
    with cases.precision("float64"):
        asked, had = cases_split.MeshLayout({"data": 4}, 4), cases_split.MeshLayout({"data": 4}, 3)
        assert [len(microbatch) for microbatch in cases_split.microbatches(had)] == [6, 4, 4]
        expected, losses = cases_split.train_plainly(case, had, STEPS, sees_microbatches=True)
        actual, actual_losses = train(case, asked)
        _, _, step = cases_split.prepare(case, asked, ranks.generation())
    assert cases.difference(actual, expected, relative=False) <= cases.NORMALISED_LIMIT
    assert actual_losses == pytest.approx(losses, rel=1e-10)
    step.check_size(4)
    with pytest.raises(errors.UserCodeError, match="A batch has 3 examples, fewer than the 4"):
        step.check_size(3)
