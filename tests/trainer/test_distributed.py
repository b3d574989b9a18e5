"""Training under the user's own tf.distribute.Strategy gives the weights of one process."""

import functools
import pathlib
import signal
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import launch, ranks, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.data import arrays, feed
from tfparallel_trainer.distributed import evaluation, steps, strategies, tpu_name
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.step import replica

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


CASES = [  # model, global batch, strategy, processes, devices of each
    pytest.param("mlp", 15, MIRRORED, 1, 2, id="mlp-mirrored"),
    pytest.param("mlp", 15, MULTI_WORKER, 2, 1, id="mlp-multi-worker"),
    pytest.param("mlp", 15, ONE_DEVICE, 1, 1, id="mlp-one-device"),
    pytest.param("cnn", 16, MIRRORED, 1, 2, id="cnn-mirrored"),
    pytest.param("cnn", 16, MULTI_WORKER, 2, 1, id="cnn-multi-worker"),
    pytest.param("tokens", 8, MIRRORED, 1, 2, id="tokens-mirrored"),
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
    trainer = {"steps": STEPS, "globalBatchSize": batch, "seed": 5, "checkpoint": {"claim": "c"}}
    started = launch.environments(
        tmp_path,
        write(tmp_path / "source", name, strategy),
        trainer,
        processes=processes,
        devices=devices,
        strategy="Custom",
    )
    with runs.group(started) as group:
        with reference.floatx():
            expected, _ = reference.train(reference.load(name), STEPS, batch, 5)
        ended = group.wait()
    assert [one.code for one in ended] == [0] * processes, ended
    difference = weights.run_difference(tmp_path, expected)
    print(f"{name}, {processes}x{devices}: largest difference of a weight {difference:.1e}")
    assert difference <= weights.TOLERANCE


RESUMED: dict[str, object] = {
    "globalBatchSize": 20,
    "seed": 3,
    "checkpoint": {"claim": "c", "everySteps": 7},
}


def by_reference(steps: int) -> tuple[Any, list[Any]]:
    """The module of the runs that are resumed, and the weights after so many steps."""
    with reference.floatx():
        module = reference.load("slow_stream")
        expected, _ = reference.train(module, steps, 20, 3, module.examples)
    return module, expected


def test_the_model_evaluates_exports_and_resumes(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "slow_stream", MIRRORED)

    def start(steps: int) -> launch.Group:
        trainer: dict[str, object] = {**RESUMED, "steps": steps, "savedModel": True}
        started = launch.environments(tmp_path, source, trainer, devices=2, strategy="Custom")
        return runs.group(started)

    with start(launch.ENDLESS) as group:
        group.wait_for_output(0, "  epoch 2  ")
        group.processes[0].kill()
    steps = launch.newest(tmp_path) + 20
    with start(steps) as group:
        module, expected = by_reference(steps)
        (ended,) = group.wait()
    assert ended.code == 0, ended
    assert "resuming after step" in ended.output
    assert weights.run_difference(tmp_path, expected) <= weights.TOLERANCE
    model = keras.models.load_model(tmp_path / "output" / outputs.MODEL, compile=False)
    served = tf.saved_model.load(tmp_path / "output" / outputs.SAVED_MODEL)
    x = module.examples(0)[0][:2]
    np.testing.assert_allclose(served.serve(x), model(x), rtol=1e-6)


@functools.cache
def strategy_of(replicas: int) -> Any:
    """One for the process: TensorFlow remembers the devices of what a strategy sends."""
    if replicas == 1:
        return tf.distribute.OneDeviceStrategy(ranks.DEVICES[0])
    return tf.distribute.MirroredStrategy(ranks.DEVICES[:replicas])


def apart(
    model: Any, examples: Any, compiled: Any, batch: int, replicas: int = 3
) -> tuple[replica.Replica, steps.Steps, arrays.ArrayFeed]:
    """A model under a strategy of this process's devices, and batches of the examples."""
    strategy = strategy_of(replicas)
    made = ranks.module(lambda: model(), lambda one: one.compile(**compiled()))
    division = feed.Division(batch_size=batch, ranks=replicas, own=tuple(range(replicas)))
    given = arrays.ArrayFeed((*examples, None), division, None)
    with strategy.scope():
        own = replica.build(made, shape.Mesh(), 0, "", 1, given.sample())
    return own, steps.Steps(strategy, made, own), given


def train(traced: steps.Steps, given: arrays.ArrayFeed) -> list[float]:
    step = traced.train(given.spec)
    return [step(number, batch, frozenset()).loss for number, batch in enumerate(given.epoch(0, 0))]


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
    told = []
    for replicas in (1, 3):
        model = lambda: normalised(synchronized=True)  # noqa: E731
        own, traced, given = apart(model, labelled(), compiled, 10, replicas)
        losses = train(traced, given)  # of 10, 10 and 1 examples
        report = traced.report()
        found = evaluation.Evaluation(own, traced, given.spec).run(given.epoch(0, 0))
        told.append((losses, report, found, own.model.get_weights()))
    for one, other in zip(*(keras.tree.flatten(each) for each in told), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-8)


@pytest.mark.usefixtures("float64")
def test_a_replica_without_examples_spoils_no_statistics() -> None:
    own, traced, given = apart(lambda: normalised(synchronized=False), labelled(), compiled, 10)
    train(traced, given)
    assert [len(variable.value.values) for variable in own.statistics()] == [3, 3]
    for variable in own.statistics():
        for local in variable.value.values:
            assert np.isfinite(local.numpy()).all()
    found = evaluation.Evaluation(own, traced, given.spec).run(given.epoch(0, 0))
    first, *others = own.statistics()[0].value.values
    assert all(np.array_equal(first.numpy(), other.numpy()) for other in others)
    alone = normalised(synchronized=False)
    alone.compile(**compiled())
    alone.set_weights(own.model.get_weights())
    own.model.optimizer.finalize_variable_values(own.model.trainable_variables)
    for weight, average in zip(
        alone.trainable_variables, own.model.trainable_variables, strict=True
    ):
        weight.assign(average.numpy())
    expected = alone.evaluate(*labelled(), verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
        ({"use_ema": True, "ema_overwrite_frequency": 3}, "ema_overwrite_frequency=3"),
    ],
)
def test_optimizers_that_keras_cannot_run_there_are_refused(
    arguments: dict[str, object], said: str
) -> None:
    model = normalised(synchronized=False)
    model.compile(keras.optimizers.SGD(0.1, **arguments), "mse")
    with pytest.raises(errors.UserCodeError, match=said):
        strategies.check_model(model)
    model.compile(keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1)), "mse")
    with pytest.raises(errors.UserCodeError, match="mixed_bfloat16"):
        strategies.check_model(model)


@pytest.mark.parametrize("given", [None, "mirrored", tf.distribute.MirroredStrategy])
def test_what_is_no_strategy_is_refused(given: Any) -> None:
    module = ranks.module(lambda: None, lambda _: None)
    with pytest.raises(errors.UserCodeError, match=r"build_strategy returns .*: let it return a"):
        strategies.check_kind(given, module)


def test_functions_that_raise_or_join_nobody(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"steps": 5, "globalBatchSize": 20, "startTimeoutSeconds": 60}
    raising = "def build_strategy():\n    raise LookupError('no such device')\n"
    cases = [("raises", raising, 1), ("alone", ONE_DEVICE, 2), ("missing", "", 1)]
    ended = []
    for name, strategy, processes in cases:
        source = write(tmp_path / f"{name}-source", "mlp", strategy)
        started = launch.environments(
            tmp_path / name, source, trainer, processes=processes, strategy="Custom"
        )
        with runs.group(started, logs=name, new=True) as group:
            ended += group.wait()
    raised, *joined, missing = ended
    assert [raised.code, missing.code] == [exits.Exit.USER_ERROR] * 2, ended
    assert "build_strategy raised LookupError: no such device" in raised.errors
    assert "has no build_strategy" in missing.errors
    # The one that ends first may do so while the other still meets.
    said = {one.code: one.errors for one in joined}
    lost = {exits.Exit.PEER_LOST, -signal.SIGALRM}
    assert set(said) <= {exits.Exit.BAD_CONFIGURATION, *lost}, ended
    alone = "1 of the 1 replicas of OneDeviceStrategy, and the job has 2 processes"
    assert alone in said[exits.Exit.BAD_CONFIGURATION]


def test_a_step_that_is_not_finite_cannot_be_left_out(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    trainer: dict[str, object] = {"steps": 5, "onNonFiniteLoss": "Continue"}
    (one,) = launch.environments(tmp_path, tmp_path, trainer, strategy="Custom")
    with runs.group([one]) as group:
        (ended,) = group.wait(30)
    assert ended.code == exits.Exit.BAD_CONFIGURATION
    assert "strategy 'Custom' cannot leave out an update" in ended.errors


def test_a_tpu_is_found_by_its_signs(tmp_path: pathlib.Path) -> None:
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


TPU_CASES = [  # the environment, the exit code, what is said
    ({}, exits.Exit.BAD_CONFIGURATION, "no TPU is here"),
    ({"TPU_NAME": "local"}, exits.Exit.BAD_CONFIGURATION, "TensorFlow cannot use the TPU 'local'"),
    ({"TPU_NAME": "grpc://127.0.0.1:9"}, exits.Exit.START_TIMEOUT, "for tpu-0 (127.0.0.1:9"),
]


@pytest.mark.parametrize(("env", "code", "said"), TPU_CASES, ids=["nothing", "local", "address"])
def test_without_a_tpu_the_strategy_is_refused(
    env: dict[str, str], code: exits.Exit, said: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "mlp", "")
    trainer: dict[str, object] = {"steps": 5, "startTimeoutSeconds": 2}
    (one,) = launch.environments(tmp_path, source, trainer, strategy="TPU", more=env)
    began = time.monotonic()
    with runs.group([one]) as group:
        (ended,) = group.wait(90)
    assert ended.code == code, ended
    assert said in ended.errors
    assert time.monotonic() - began < (10 if not env else 60)


def test_two_processes_end_together_and_resume(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    source = write(tmp_path / "source", "slow_stream", MULTI_WORKER)

    def start(attempt: int, steps: int = launch.ENDLESS) -> launch.Group:
        trainer = {**RESUMED, "steps": steps}
        more = {environment.ATTEMPT: str(attempt)}
        started = launch.environments(
            tmp_path, source, trainer, processes=2, strategy="Custom", more=more
        )
        return runs.group(launch.sharing(tmp_path, started))

    with start(1) as group:
        group.wait_for_output(0, "  epoch 2  ")
        group.processes[1].kill()
        killed = time.monotonic()
        assert group.processes[0].wait(20) == exits.Exit.PEER_LOST, group.result(0)
        assert time.monotonic() - killed < 10
    with start(2) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].terminate()
        ended = group.wait(20)
        assert [one.code for one in ended] == [exits.Exit.PREEMPTED] * 2, ended
    steps = launch.newest(tmp_path) + 20
    with start(3, steps) as group:
        _, expected = by_reference(steps)
        ended = group.wait()
    assert [one.code for one in ended] == [0, 0], ended
    assert "resuming after step" in ended[0].output
    assert weights.run_difference(tmp_path, expected) <= weights.TOLERANCE
