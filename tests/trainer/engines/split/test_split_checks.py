"""Steps of a divided model are compared with one process: faults show, right models pass."""

import functools
import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import cases, cases_split, losses, split_models, split_ranks, split_referee
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import verification
from tfparallel_trainer.engines.split import callback_model
from tfparallel_trainer.engines.split.execution import captures, ranks
from tfparallel_trainer.engines.split.model import added_losses, step_effects, variable_identity
from tfparallel_trainer.engines.split.referee import gathering, single_process
from tfparallel_trainer.objective import likeness
from tfparallel_trainer.objective.referee import reference_model

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

    loss_by_output = dict.fromkeys(outputs[:1], "mse") or "mse"
    metrics = None if outputs else ["mae"]
    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(optimizer(), loss_by_output, metrics=metrics),
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
    (check,) = split_referee.check(trained, shape.MeshShape(stage=2), 2, batch=8, steps=1)
    assert {*check.differences} == {*KIND} - {KIND.NON_TRAINABLE_STATE}
    assert max(quantity.value for quantity in check.differences.values()) < 1e-13
    assert list(check.omitted) == []


@pytest.mark.parametrize("synchronized", [True, False])
def test_normalised_microbatches_are_compared_as_one(synchronized: bool) -> None:
    """One process would normalise the whole batch."""
    middle = functools.partial(LAYERS.BatchNormalization, synchronized=synchronized)
    mesh = shape.MeshShape(data=2, stage=2)
    checks = split_referee.check(functions(sequential(middle), sgd), mesh, 2, batch=8, steps=1)
    assert max(quantity.value for quantity in checks[0].differences.values()) < 1e-13
    omissions = ["microbatches, each of which BatchNormalization normalizes by itself"]
    replicas = [] if synchronized else ["BatchNormalization of each replica's own examples"]
    assert list(checks[0].omitted) == omissions + replicas


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
class SlowFirstLayer(keras.optimizers.SGD):
    """Gives the first layer a tenth of the rate."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        factors = [0.1 if "first" in variable.path else 1.0 for variable in trainable_variables]
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
        functions(sequential(dropout), lambda: SlowFirstLayer(0.1)),
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


@pytest.mark.parametrize(("switch_off", "trained", "layout", "pattern"), FAULTS)
def test_a_fault_ends_the_job_at_its_first_check(
    switch_off: Callable[[pytest.MonkeyPatch], None],
    trained: Functions,
    layout: tuple[dict[str, int], int],
    pattern: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    switch_off(monkeypatch)
    degrees, microbatches = layout
    with pytest.raises(errors.VerificationError, match=rf"^Step 1 differs.*{pattern}"):
        split_referee.check(trained, shape.MeshShape(**degrees), microbatches, batch=8)


def check_is_refused_after_a_change(mesh: shape.MeshShape, rank: int) -> None:
    """Change a weight of one rank after step 1."""

    def change(local_ranks: ranks.Ranks) -> None:
        weight = next(iter(local_ranks.local[rank].weights.values()))
        weight.assign(weight + 1e-3)

    trained = functions(sequential(dropout), sgd)
    sentence = r"Step 2 .* in weights \(sequential/first/kernel\): its value differs between"
    with pytest.raises(errors.VerificationError, match=sentence):
        split_referee.check(trained, mesh, batch=8, after_step=change)


def test_a_weight_that_one_rank_alone_has_changed_ends_the_job() -> None:
    check_is_refused_after_a_change(shape.MeshShape(data=2), 1)


class Heated(keras.layers.Layer):
    """Divides by a temperature that belongs to no layer."""

    def __init__(self, read: Callable[[], Any], **more: Any) -> None:
        super().__init__(**more)
        self.read = read

    def call(self, x: Any) -> Any:
        return x / self.read()


def closing_over(temperature: Any) -> Functions:
    """Give a model and a loss that read variables of neither the model nor its optimizer."""
    trained = functions(sequential(lambda: Heated(lambda: temperature)), sgd)
    return trained | {
        "compile_model": lambda model: model.compile(sgd(), losses.Weighted(), metrics=["mae"])
    }


def lower(local_ranks: ranks.Ranks, temperature: tf.Variable) -> None:
    """Write both as a callback does, where the first rank is."""
    local_ranks.local[0].head.model.loss.alpha.assign(0.25)
    temperature.assign(2.0)


LAYOUTS = pytest.mark.parametrize("degrees", [{"stage": 2}, {"data": 2}], ids=str)


@LAYOUTS
def test_a_variable_of_the_loss_that_the_first_rank_alone_has_changed_ends_the_job(
    degrees: dict[str, int],
) -> None:
    """Nothing shares here what a callback writes."""
    temperature = tf.Variable(1.0, dtype="float64", name="temperature")
    sentence = (
        r"^Step 2 .* in non-trainable state \(alpha \(not of the model\)\): its value differs"
    )
    with pytest.raises(errors.VerificationError, match=sentence):
        split_referee.check(
            closing_over(temperature),
            shape.MeshShape(**degrees),
            batch=8,
            after_step=lambda local_ranks: lower(local_ranks, temperature),
        )


@LAYOUTS
def test_variables_outside_the_model_that_callbacks_write_are_those_of_one_process(
    degrees: dict[str, int],
) -> None:
    temperature = tf.Variable(1.0, dtype="float64", name="temperature")

    def after_step(local_ranks: ranks.Ranks) -> None:
        def act() -> bytes:
            lower(local_ranks, temperature)
            return b""

        reach = callback_model.SplitModelAccess(local_ranks, [])
        reach.after(act)
        assert [float(variable.head.model.loss.alpha) for variable in local_ranks.local] == [
            0.25
        ] * 2
        changes.append(reach.changes)
        assert len(reach.dump_closures()) == 2 * reach.changes

    changes: list[int] = []
    checks = split_referee.check(
        closing_over(temperature),
        shape.MeshShape(**degrees),
        batch=8,
        after_step=after_step,
        steps=2,
    )
    assert changes == [1, 0]
    assert len(checks) == 2
    for check in checks:
        assert max(quantity.value for quantity in check.differences.values()) < 1e-13


class Shifted(keras.layers.Layer):
    """Adds a number that is another one for each model, which its configuration does not say."""

    def __init__(self, shift: float, **more: Any) -> None:
        super().__init__(**more)
        self.shift = shift

    def call(self, x: Any) -> Any:
        return x + self.shift


def test_a_model_that_differs_between_processes_ends_the_job_at_its_first_check() -> None:
    """Nothing compares the models here; that of one process is built last."""
    shifts = itertools.count()
    trained = functions(sequential(lambda: Shifted(float(next(shifts)))), sgd)
    with pytest.raises(errors.VerificationError, match=r"^Step 1 differs.*loss and gradients"):
        split_referee.check(trained, shape.MeshShape(stage=2), batch=8)


@pytest.mark.parametrize(
    "change",
    [
        {"shift": 1.0},
        {"scale": 2.0},
        {"constant": 3.0},
        {"alpha": 4.0},
    ],
    ids=lambda change: next(iter(change)),
)
def test_what_differs_between_the_models_of_processes_has_a_name(change: dict[str, float]) -> None:
    names = {
        "shift": "the layer shifted",
        "scale": "the loss, the metrics or the operations of a step",
        "constant": "the operation add",
        "alpha": "the variable alpha",
    }
    first, other = digests(), digests(**change)
    assert first == digests()
    assert [what for what in first if other[what] != first[what]] == [names[next(iter(change))]]


def digests(
    shift: float = 0.0, scale: float = 1.0, constant: float = 1.0, alpha: float = 1.0
) -> likeness.Digests:
    """Describe a model that is built now, with whatever its process makes of the arguments."""

    def build() -> Any:
        first = keras.Input((3,))
        x = keras.ops.add(LAYERS.Dense(2)(first), np.full(2, constant))
        return keras.Model(first, Shifted(shift, name="shifted")(x))

    def compile_model(model: Any) -> None:
        variable = keras.Variable(alpha, trainable=False, name="alpha")

        def loss(y: Any, y_pred: Any) -> Any:
            return variable * keras.ops.mean(keras.ops.square(y - y_pred), -1) * scale

        model.compile("sgd", loss)

    trained = functions(build, sgd) | {"compile_model": compile_model}
    local_ranks, examples, _ = split_ranks.prepare_new(
        trained, shape.MeshShape(stage=2), 1, batch=8
    )
    return captures.find(local_ranks, examples.spec)[0]


@pytest.fixture
def too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no process have the models of this file as a whole, nor bring them together."""

    def state(_: gathering.StateGathering) -> None:
        raise AssertionError("the whole model is brought together")

    monkeypatch.setattr(reference_model, "MOST_WEIGHTS", 10)
    monkeypatch.setattr(gathering.StateGathering, "state", state)


TOO_LARGE = "a model of more than 10 weights, which one process cannot hold"


@pytest.mark.usefixtures("too_large")
@pytest.mark.parametrize("degrees", [{"stage": 2}, {"data": 2, "tensor": 2}], ids=str)
def test_of_a_model_that_no_process_can_hold_copies_alone_are_compared(
    degrees: dict[str, int],
) -> None:
    assert single_process.find_obstacle(11) == TOO_LARGE
    assert single_process.find_obstacle(10) == ""
    (check,) = split_referee.check(
        functions(sequential(dropout), sgd), shape.MeshShape(**degrees), batch=8, steps=1
    )
    assert check.differences == {}
    assert check.omitted == [TOO_LARGE, "all but the copies of each variable, which are alike"]


@pytest.mark.usefixtures("too_large")
def test_a_copy_that_one_rank_alone_has_changed_ends_the_job_of_any_size() -> None:
    check_is_refused_after_a_change(shape.MeshShape(data=2, tensor=2), 3)


RUNS = [(case, layout) for case in cases.CASES for layout in cases_split.LAYOUTS]


@pytest.mark.long
@pytest.mark.parametrize("run", repeats.some(RUNS, []), ids=lambda run: f"{run[0].name}-{run[1]}")
def test_no_right_model_is_refused(run: tuple[cases.Case, cases_split.MeshLayout]) -> None:
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
