"""Steps of a divided model are compared with one process: faults show, right models pass."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing import repeats
from testing.trainer import cases, cases_split, split_models, split_referee
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.engines.split.engine import ranks
from tfparallel_trainer.engines.split.model import added_losses, step_effects, variable_identity
from tfparallel_trainer.engines.split.referee import alone

pytestmark = split_models.MARKS

LAYERS = keras.layers
KIND = verification.Quantity
Functions = dict[str, Callable[..., Any]]


def functions(build: Callable[[], Any], optimizer: Callable[[], Any], *outputs: str) -> Functions:
    """Give functions of a module; of several outputs the first one alone has a loss."""

    def training_data() -> Any:
        random = np.random.default_rng(0)
        x, y = random.normal(size=(8, 3)), random.normal(size=(8, 2))
        return x, dict.fromkeys(outputs, y) if outputs else y

    losses = dict.fromkeys(outputs[:1], "mse") or "mse"
    metrics = None if outputs else ["mae"]
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(optimizer(), losses, metrics=metrics),
        "training_data": training_data,
    }


def sequential(middle: Callable[[], Any]) -> Callable[[], Any]:
    return lambda: keras.Sequential(
        [keras.Input((3,)), LAYERS.Dense(4, "tanh", name="first"), middle(), LAYERS.Dense(2)]
    )


def sgd() -> Any:
    return keras.optimizers.SGD(0.1)


class AddsLoss(keras.layers.Layer):
    """Adds a sum over the batch to the loss, but only while it trains."""

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.add_loss(keras.ops.sum(keras.ops.square(x)))
        return x


def dropout() -> Any:
    return LAYERS.Dropout(0.3)


def test_a_right_model_equals_one_process_with_its_random_numbers() -> None:
    trained = functions(sequential(dropout), lambda: keras.optimizers.Adam(0.01))
    (check,) = split_referee.check(trained, shape.Mesh(stage=2), 2, batch=8, steps=1)
    assert {*check.differences} == {*KIND} - {KIND.NON_TRAINABLE_STATE}
    assert max(one.value for one in check.differences.values()) < 1e-13
    assert list(check.omitted) == []


class Counts(keras.layers.Layer):
    """Counts its calls in training."""

    def build(self, _: Any) -> None:
        self.calls = self.add_weight(shape=(), initializer="zeros", trainable=False, name="calls")

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.calls.assign_add(1.0)
        return x


class Shrinks(keras.layers.Layer):
    """Assigns the weight that it trains in its forward pass."""

    def build(self, input_shape: Any) -> None:
        self.kernel = self.add_weight(shape=(input_shape[-1], 4), name="kernel")

    def call(self, x: Any) -> Any:
        self.kernel.assign(0.9 * self.kernel)
        return keras.ops.tanh(x @ self.kernel)


def two_heads() -> Any:
    """Give a model of which one head has no loss."""
    first = keras.Input((3,))
    trunk = LAYERS.Dense(4, "tanh")(first)
    other = LAYERS.Dense(2, name="unused", bias_initializer="ones")(LAYERS.Dense(4)(trunk))
    return keras.Model(first, {"first": LAYERS.Dense(2, name="first")(trunk), "unused": other})


@keras.saving.register_keras_serializable("checks")
class Discriminative(keras.optimizers.SGD):
    """Gives the first layer a tenth of the rate."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        factors = [0.1 if "first" in one.path else 1.0 for one in trainable_variables]
        scaled = [gradient * factor for gradient, factor in zip(grads, factors, strict=True)]
        super().apply(scaled, trainable_variables)


def without_trial(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(added_losses, "check", lambda _: None)


def without_effects(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ranks, "_effects", lambda *_: step_effects.Effects())


def without_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    def variable_like(skeleton: Any, value: Any) -> Any:
        variable = original(skeleton, value)
        variable._path = skeleton.name
        return variable

    original = variable_identity.variable_like
    monkeypatch.setattr(variable_identity, "variable_like", variable_like)


def adamw() -> Any:
    return keras.optimizers.AdamW(0.05, weight_decay=0.3)


FAULTS = [  # what mends it, switched off; functions; a mesh, microbatches; words
    pytest.param(
        without_trial,
        functions(sequential(AddsLoss), sgd),
        ({"stage": 2}, 2),
        r"loss and gradients \(.*/kernel.*depends on which examples are in a batch together",
        id="loss-of-training",
    ),
    pytest.param(
        without_effects,
        functions(two_heads, adamw, "first", "unused"),
        ({"tensor": 2}, 1),
        r"in weights \(.*unused/bias.*decays a weight without a gradient",
        id="no-gradient",
    ),
    pytest.param(
        without_paths,
        functions(sequential(dropout), lambda: Discriminative(0.1)),
        ({"stage": 2}, 1),
        r"weights \(sequential/first/kernel.*tells variables apart by path or identity",
        id="path",
    ),
    pytest.param(
        without_effects,
        functions(sequential(Counts), sgd),
        ({"stage": 2}, 2),
        r"non-trainable state \(sequential/counts/calls\): a layer assigns it in its forward pass",
        id="counter",
    ),
    pytest.param(
        without_effects,
        functions(sequential(Shrinks), sgd),
        ({"stage": 2}, 2),
        "a layer assigns it in its forward pass",
        id="assigned-kernel",
    ),
]


@pytest.mark.parametrize(("switch_off", "trained", "layout", "words"), FAULTS)
def test_a_fault_ends_the_job_at_its_first_check(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    trained: Functions,
    layout: tuple[dict[str, int], int],
    words: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    degrees, microbatches = layout
    with pytest.raises(errors.VerificationError, match=rf"^Step 1 gives other.*{words}"):
        split_referee.check(trained, shape.Mesh(**degrees), microbatches, batch=8)


def test_a_weight_that_one_place_alone_has_changed_ends_the_job() -> None:
    def change(local_ranks: ranks.Ranks) -> None:
        weight = next(iter(local_ranks.local[1].weights.values()))
        weight.assign(weight + 1e-3)

    trained = functions(sequential(dropout), sgd)
    sentence = r"Step 2 .* in weights \(sequential/first/kernel\): the replicas have other values"
    with pytest.raises(errors.VerificationError, match=sentence):
        split_referee.check(trained, shape.Mesh(data=2), batch=8, after_step=change)


def test_a_model_that_the_first_process_cannot_hold_is_not_compared(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(alone, "_MOST", 10)
    reason = alone.find_obstacle(11)
    assert reason == "a model of more than 10 weights, which the first process cannot hold"
    assert alone.find_obstacle(10) == ""
    with pytest.raises(alone.UnfitError, match="more than 10 weights"):
        alone.judge(reason, None, {})


RUNS = [(case, layout) for case in cases.CASES for layout in cases_split.LAYOUTS]


@pytest.mark.long
@pytest.mark.parametrize("run", repeats.some(RUNS, []), ids=lambda run: f"{run[0].name}-{run[1]}")
def test_no_right_model_is_refused(run: tuple[cases.Case, cases_split.Layout]) -> None:
    case, layout = run
    trained = case.functions(synchronized=layout.degrees.get("data", 1) > 1)
    try:
        checks = split_referee.check(
            trained, layout.mesh(0), layout.microbatches, batch=cases_split.BATCH, steps=2
        )
    except errors.BadConfigurationError as error:
        pytest.skip(str(error))
    assert len(checks) == 2
    assert all(check.differences for check in checks)
