"""Training under the user's own tf.distribute.Strategy gives the weights of one process."""

import pathlib
import signal
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import launch, ranks, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape, tpu_name
from tfparallel_trainer.contract import exits, outputs, verification
from tfparallel_trainer.data import arrays
from tfparallel_trainer.engines.strategy import strategy_run, strategy_steps
from tfparallel_trainer.engines.strategy.strategy_steps import (
    ReplicatedModel,
    StrategyEvaluator,
    StrategyTrainStep,
)
from tfparallel_trainer.objective import replica, tracing

STEPS = 15
MIRRORED = """
def build_strategy():
    import tensorflow as tf

    devices = tf.config.list_logical_devices("CPU")
    return tf.distribute.MirroredStrategy([device.name for device in devices])
"""
ONE_DEVICE = """
def build_strategy():
    import tensorflow as tf

    return tf.distribute.OneDeviceStrategy("/cpu:0")
"""
MULTI_WORKER = """
def build_strategy():
    import tensorflow as tf

    return tf.distribute.MultiWorkerMirroredStrategy()
"""


def write(folder: pathlib.Path, name: str, strategy: str) -> pathlib.Path:
    """A module of the tests' models that brings a strategy."""
    folder.mkdir()
    text = (reference.MODELS / f"{name}.py").read_text()
    (folder / "model.py").write_text(f"{text}\n{strategy}")
    return folder


LONG = pytest.mark.long
CASES = [  # model, global batch, strategy, processes, devices of each
    pytest.param("mlp", 15, MIRRORED, 1, 2, id="mlp-mirrored", marks=LONG),
    pytest.param("mlp", 15, MULTI_WORKER, 2, 1, id="mlp-multi-worker", marks=LONG),
    pytest.param("mlp", 15, ONE_DEVICE, 1, 1, id="mlp-one-device"),
    pytest.param("cnn", 16, MIRRORED, 1, 2, id="cnn-mirrored"),
    pytest.param("cnn", 16, MULTI_WORKER, 2, 1, id="cnn-multi-worker", marks=LONG),
    pytest.param("tokens", 8, MIRRORED, 1, 2, id="tokens-mirrored", marks=LONG),
    pytest.param("tokens", 8, MULTI_WORKER, 2, 1, id="tokens-multi-worker"),
]


@pytest.mark.parametrize(("name", "batch", "strategy", "processes", "devices"), CASES)
def test_weights_equal_one_process(
    name: str,
    batch: int,
    strategy: str,
    processes: int,
    devices: int,
    tmp_path: pathlib.Path,
    runs: trainings.Runs,
) -> None:
    training = runs.finish(
        "model.py",
        source=write(tmp_path / "source", name, strategy),
        strategy="Custom",
        processes=processes,
        devices=devices,
        steps=STEPS,
        globalBatchSize=batch,
        seed=5,
        checkpoint={"claim": "c"},
    )
    with reference.floatx():
        expected, _ = reference.train(reference.load(name), STEPS, batch, 5)
    difference = training.difference(expected)
    print(f"{name}, {processes}x{devices}: largest difference of a weight {difference:.1e}")
    assert difference <= weights.TOLERANCE


SLOW_STREAM: dict[str, Any] = {
    "strategy": "Custom",
    "globalBatchSize": 20,
    "seed": 3,
    "checkpoint": {"claim": "c", "everySteps": 7},
}


def by_reference(last_step: int) -> tuple[Any, list[Any]]:
    """The module `slow_stream`, and its weights after so many steps of one process."""
    with reference.floatx():
        module = reference.load("slow_stream")
        expected, _ = reference.train(module, last_step, 20, 3, module.examples)
    return module, expected


def test_the_model_is_trained_and_exported(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    source = write(tmp_path / "source", "slow_stream", MIRRORED)
    training = runs.finish(
        "model.py", source=source, devices=2, steps=STEPS, savedModel=True, **SLOW_STREAM
    )
    module, expected = by_reference(STEPS)
    assert training.difference(expected) <= weights.TOLERANCE
    model = keras.models.load_model(training.output / outputs.MODEL, compile=False)
    served = tf.saved_model.load(training.output / outputs.SAVED_MODEL)
    x = module.examples(0)[0][:2]
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-6)


def build(
    model: Any, examples: Any, compiled: Any, batch: int, replicas: int = 3
) -> tuple[replica.Replica, ReplicatedModel, arrays.ArraySource]:
    """A model under a strategy of this process's devices, and batches of the examples."""
    strategy = ranks.strategy(replicas)
    module = ranks.module(lambda: model(), lambda built: built.compile(**compiled()))
    batches = ranks.feed_of((*examples, None), replicas, batch)
    with strategy.scope():
        mirror = replica.build(module, shape.MeshShape(), 0, "", 1, batches.sample())
    return mirror, ReplicatedModel(strategy, module, mirror), batches


def train(traced: ReplicatedModel, batches: arrays.ArraySource) -> list[float]:
    step = StrategyTrainStep(traced, batches.spec)
    return [
        step(number, batch, frozenset()).loss for number, batch in enumerate(batches.epoch(0, 0))
    ]


def normalised(synchronized: bool) -> keras.Model:
    return keras.Sequential(
        [
            keras.Input((4,)),
            keras.layers.Dense(3, use_bias=False),
            keras.layers.BatchNormalization(synchronized=synchronized),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )


def labelled(examples: int = 21) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.normal(size=(examples, 4)), random.integers(0, 2, size=(examples, 1)) * 1.0


def compiled() -> dict[str, Any]:
    return {
        "optimizer": keras.optimizers.AdamW(0.05, global_clipnorm=0.5, use_ema=True),
        "loss": "binary_crossentropy",
        "metrics": ["accuracy", keras.metrics.AUC(name="auc")],
    }


@pytest.mark.usefixtures("float64")
def test_synchronised_normalisation_and_averages_equal_one_replica() -> None:
    results = []
    for replicas in (1, 3):
        model = lambda: normalised(synchronized=True)  # noqa: E731
        mirror, traced, batches = build(model, labelled(), compiled, 10, replicas)
        losses = train(traced, batches)  # of 10, 10 and 1 examples
        report = traced.report()
        metrics = StrategyEvaluator(traced, batches.spec).run(batches.epoch(0, 0))
        results.append((losses, report, metrics, mirror.model.get_weights()))
    for array, other in zip(*(keras.tree.flatten(result) for result in results), strict=True):
        np.testing.assert_allclose(array, other, rtol=1e-8)


class Traced(keras.layers.Layer):
    """Counts how often it is traced."""

    count = 0

    def call(self, x: Any) -> Any:
        Traced.count += 1
        return keras.ops.mean(x, axis=1, keepdims=True)


def test_lengths_that_are_long_unused_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(strategy_steps, "MOST_TRACED", 2)
    model = lambda: keras.Sequential([keras.Input((None,)), Traced(), keras.layers.Dense(1)])  # noqa: E731
    feeds = {length: ranks.feed_of((*sized(length), None), 1, 6) for length in (3, 4, 5)}
    _, traced, batches = build(model, sized(3), lambda: {"optimizer": "sgd", "loss": "mse"}, 6, 1)
    step = StrategyTrainStep(traced, batches.spec)

    def traces(length: int) -> int:
        before = Traced.count
        step(0, next(iter(feeds[length].epoch(0, 0))), frozenset())
        return Traced.count - before

    once = traces(3)
    assert once > 0
    assert [traces(length) for length in (4, 5, 4, 5, 3, 5)] == [once, once, 0, 0, once, 0]


def sized(length: int) -> tuple[np.ndarray, np.ndarray]:
    """Examples of a length."""
    return np.ones((6, length)), np.ones((6, 1))


@pytest.mark.usefixtures("float64")
def test_a_replica_without_examples_spoils_no_statistics() -> None:
    mirror, traced, batches = build(
        lambda: normalised(synchronized=False), labelled(), compiled, 10
    )
    train(traced, batches)
    assert [len(variable.value.values) for variable in mirror.statistics()] == [3, 3]
    for variable in mirror.statistics():
        for local in variable.value.values:
            assert np.isfinite(local.numpy()).all()
    metrics = StrategyEvaluator(traced, batches.spec).run(batches.epoch(0, 0))
    first, *others = mirror.statistics()[0].value.values
    assert all(np.array_equal(first.numpy(), other.numpy()) for other in others)
    alone = normalised(synchronized=False)
    alone.compile(**compiled())
    alone.set_weights(mirror.model.get_weights())
    mirror.model.optimizer.finalize_variable_values(mirror.model.trainable_variables)
    for weight, average in zip(
        alone.trainable_variables, mirror.model.trainable_variables, strict=True
    ):
        weight.assign(average.numpy())
    expected = alone.evaluate(*labelled(), verbose=0, return_dict=True)
    assert metrics == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
        ({"use_ema": True, "ema_overwrite_frequency": 3}, "ema_overwrite_frequency=3"),
    ],
)
def test_optimizers_that_keras_cannot_run_there_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    model = normalised(synchronized=False)
    model.compile(keras.optimizers.SGD(0.1, **arguments), "mse")
    with pytest.raises(errors.UserCodeError, match=message):
        strategy_run.check_optimizer(model.optimizer)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(errors.UserCodeError, match="mixed_bfloat16"):
        strategy_run.check_optimizer(model.optimizer)


@pytest.mark.parametrize("strategy", [None, "mirrored", tf.distribute.MirroredStrategy])
def test_what_is_no_strategy_is_refused(strategy: Any) -> None:
    module = ranks.module(lambda: None, lambda _: None)
    with pytest.raises(errors.UserCodeError, match=r"build_strategy returns .*: let it return a"):
        strategy_run.check_kind(strategy, module)


def loss_with(factor: Any, *, assigns: bool = False) -> Any:
    """A loss that closes over a number or a variable."""

    def loss(y: Any, y_pred: Any) -> Any:
        if assigns:
            factor.assign_add(1.0)
        return keras.ops.mean(keras.ops.square(y - y_pred), -1) * factor

    return loss


def traced_with(factor: Any, *, assigns: bool = False) -> tracing.Trace:
    def compiled() -> dict[str, Any]:
        return {"optimizer": "adam", "loss": loss_with(factor, assigns=assigns)}

    _, traced, batches = build(lambda: normalised(synchronized=True), labelled(), compiled, 10)
    return traced.trace(batches.spec)


def test_a_variable_of_its_own_that_a_step_assigns_on_each_replica_is_refused() -> None:
    trace = traced_with(tf.Variable(1.0, name="factor"))
    tracing.check(trace, 3)
    assert {closure.path for closure in trace.closures} == {"factor"}
    assigning = traced_with(tf.Variable(1.0, name="factor"), assigns=True)
    with pytest.raises(errors.UserCodeError, match="A step assigns the variable factor"):
        tracing.check(assigning, 3)


def test_it_says_once_that_no_step_is_compared_with_one_process() -> None:
    _, traced, batches = build(lambda: normalised(synchronized=True), labelled(), compiled, 10)
    step = StrategyTrainStep(traced, batches.spec, omitted=["strategy Custom"])
    checks = [
        step(number, batch, frozenset()).check for number, batch in enumerate(batches.epoch(0, 0))
    ]
    first, *others = checks
    assert first is not None and first() == verification.Check(1, {}, ["strategy Custom"])
    assert others == [None, None]


@pytest.mark.parametrize(
    ("processes", "compares_models", "others"),
    [
        (1, True, []),
        (2, True, ["constants of the processes' models, such as arrays that a loss closes over"]),
        (2, False, ["the processes' models with each other"]),
    ],
)
def test_what_is_not_compared_under_a_strategy_is_said(
    processes: int, compares_models: bool, others: list[str]
) -> None:
    first = "strategy Custom, because a tf.distribute strategy holds the variables"
    omitted = strategy_run.omissions("Custom", processes, compares_models=compares_models)
    assert omitted == [first, *others]


RAISING = "def build_strategy():\n    raise LookupError('no such device')\n"


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (RAISING, "build_strategy raised LookupError: no such device"),
        ("", "build_strategy is missing"),
    ],
    ids=["raises", "missing"],
)
def test_without_the_users_strategy_the_module_is_refused(
    strategy: str, message: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "mlp", strategy)
    (variables,) = runs.environments("model.py", source=source, strategy="Custom", steps=5)
    with reference.floatx():
        ended = trainings.attempt(variables)
    assert ended.code == exits.Exit.USER_ERROR, ended
    assert message in ended.errors


def test_a_strategy_that_joins_nobody_is_refused(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "mlp", ONE_DEVICE)
    training = runs.end(
        "model.py",
        source=source,
        strategy="Custom",
        processes=2,
        new=True,
        steps=5,
        startTimeoutSeconds=60,
    )
    # The one that ends first may do so while the other still meets.
    errors_by_code = {process.code: process.errors for process in training.ended}
    lost = {exits.Exit.PEER_LOST, -signal.SIGALRM}
    assert set(errors_by_code) <= {exits.Exit.BAD_CONFIGURATION, *lost}, training.ended
    message = "1 of the 1 replicas of OneDeviceStrategy, and the job has 2 processes"
    assert message in errors_by_code[exits.Exit.BAD_CONFIGURATION]


def test_a_step_that_is_not_finite_cannot_be_left_out(runs: trainings.Runs) -> None:
    (variables,) = runs.environments(
        "mlp.py", strategy="Custom", steps=5, onNonFiniteLoss="Continue"
    )
    ended = trainings.attempt(variables)
    assert ended.code == exits.Exit.BAD_CONFIGURATION
    assert "strategy 'Custom' cannot leave out an update" in ended.errors


def test_a_tpu_is_recognized_by_its_signs(tmp_path: pathlib.Path) -> None:
    with pytest.raises(errors.BadConfigurationError, match="no TPU is here"):
        tpu_name.find({}, tmp_path)
    assert tpu_name.find({"TPU_NAME": "mine"}, tmp_path) == "mine"
    assert tpu_name.find({"KUBE_GOOGLE_CLOUD_TPU_ENDPOINTS": "grpc://a:8470"}) == "grpc://a:8470"
    (tmp_path / "accel0").touch()
    assert tpu_name.find({"TPU_WORKER_HOSTNAMES": "a"}, tmp_path) == "local"
    with pytest.raises(errors.BadConfigurationError, match="names 2 hosts of one TPU"):
        tpu_name.find({"TPU_WORKER_HOSTNAMES": "a,b"}, tmp_path)
    assert tpu_name.addresses("grpc://a:1,grpc://b") == ["a:1", "b:8470"]
    assert tpu_name.addresses("mine") == []


def test_a_tpu_that_is_missing_is_refused(runs: trainings.Runs) -> None:
    def attempt(**variables: str) -> launch.Ended:
        (environment,) = runs.environments(
            "mlp.py", strategy="TPU", steps=5, startTimeoutSeconds=2, variables=variables
        )
        with reference.floatx():
            return trainings.attempt(environment)

    nothing, address = attempt(), attempt(TPU_NAME="grpc://127.0.0.1:9")
    assert nothing.code == exits.Exit.BAD_CONFIGURATION, nothing
    assert "no TPU is here" in nothing.errors
    assert address.code == exits.Exit.START_TIMEOUT, address
    assert "for tpu-0 (127.0.0.1:9" in address.errors


def test_a_tpu_that_tensorflow_cannot_use_is_refused(runs: trainings.Runs) -> None:
    training = runs.end("mlp.py", strategy="TPU", steps=5, variables={"TPU_NAME": "local"})
    assert training.codes == [exits.Exit.BAD_CONFIGURATION], training.ended
    assert "TensorFlow cannot use the TPU 'local'" in training.chief.errors


def test_two_processes_end_together_and_resume(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "slow_stream", MULTI_WORKER)

    def start(attempt: int, last_step: int = launch.ENDLESS) -> launch.Group:
        environments = runs.environments(
            "model.py", source=source, processes=2, attempt=attempt, steps=last_step, **SLOW_STREAM
        )
        return runs.group(launch.sharing(tmp_path, environments))

    with start(1) as group:
        group.wait_for_output(0, "  epoch 3  ")
        group.processes[1].kill()
        chief, _ = group.wait(60)
        assert chief.code == exits.Exit.PEER_LOST, chief
    with start(2) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].terminate()
        ended = group.wait()
        assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
    last_step = launch.newest(tmp_path) + 20
    with start(3, last_step) as group:
        chief, _ = group.finish()
    assert "resuming after step" in chief.output
    _, expected = by_reference(last_step)
    assert weights.run_difference(tmp_path, expected) <= weights.TOLERANCE
