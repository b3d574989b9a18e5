"""Which first steps are taken for those of a model that a replica trains for itself."""

import json
import pathlib
import re
import sys
import types
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
import tf_keras

from testing import pages, paths
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.scripts import first_step, separation

PEERS = {"worker": ["a:1", "b:1", "c:1"], "ps": ["d:1"]}
X, Y = np.ones((8, 4), "float32"), np.ones((8, 1), "float32")


def configure(
    monkeypatch: pytest.MonkeyPatch,
    role: str = "worker",
    index: int = 1,
    cluster: Any = PEERS,
) -> None:
    config = {"cluster": cluster, "task": {"type": role, "index": index}}
    monkeypatch.setenv(environment.TF_CONFIG, json.dumps(config))


@pytest.fixture(autouse=True)
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Watch this process, as one of three workers, until its first step."""
    for package in (*separation._EXCHANGING, *separation._SEARCHING):
        monkeypatch.delitem(sys.modules, package, raising=False)  # other tests import some
    configure(monkeypatch)
    monkeypatch.setenv(environment.ON_SEPARATE_TRAINING, "Stop")
    first_step.watch()
    yield
    first_step.stop()


def a_model(optimizer: Any = "sgd", library: Any = keras) -> Any:
    model = library.Sequential([library.layers.Input((4,)), library.layers.Dense(1)])
    model.compile(optimizer, "mse")
    return model


def fit(model: Any) -> None:
    model.fit(X, Y, verbose=0)


def take_step(model: Any) -> None:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean((model(X) - Y) ** 2)
    gradients = tape.gradient(loss, model.trainable_variables)
    model.optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def take_compiled_step(model: Any) -> None:
    tf.function(take_step)(model)


def scaled() -> Any:
    return keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(0.1))


def on_one_device(strategy: Callable[..., Any]) -> Any:
    with strategy("CPU:0" if strategy is tf.distribute.OneDeviceStrategy else ["CPU:0"]).scope():
        return a_model()


@pytest.mark.parametrize(
    ("build", "train", "cause"),
    [
        (a_model, fit, "Keras' fit"),
        (a_model, lambda model: model.train_on_batch(X, Y), "Keras' train_on_batch"),
        (a_model, take_step, "its optimizer"),
        (a_model, take_compiled_step, "its optimizer"),
        (lambda: a_model(scaled()), fit, "Keras' fit"),
        (lambda: on_one_device(tf.distribute.OneDeviceStrategy), fit, "Keras' fit"),
        (lambda: on_one_device(tf.distribute.MirroredStrategy), fit, "Keras' fit"),
        (lambda: a_model(library=tf_keras), fit, "Keras' fit"),
        (lambda: a_model(tf_keras.optimizers.legacy.SGD(0.1), tf_keras), fit, "Keras' fit"),
        (lambda: a_model(library=tf_keras), take_step, "its optimizer"),
    ],
)
def test_a_step_without_peers_changes_no_weight_and_ends_the_script(
    build: Callable[[], Any],
    train: Callable[[Any], None],
    cause: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = build()
    before = model.get_weights()
    with pytest.raises(SystemExit) as ended:
        train(model)
    assert ended.value.code == exits.Exit.USER_ERROR
    assert all(map(np.array_equal, model.get_weights(), before))
    output = capsys.readouterr().err
    assert (
        "[worker-1] error: worker-1 trains a model of its own (test_separation.py, line " in output
    )
    assert f"TF_CONFIG gives it 2 peers, and {cause} shares nothing with them." in output
    assert "set spec.onSeparateTraining to Continue" in output


def test_the_place_is_the_call_and_not_a_step_of_the_model_itself(
    capsys: pytest.CaptureFixture[str],
) -> None:
    class CustomStep(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.layer = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.layer(x)

        def train_step(self, data: Any) -> Any:
            take_step(self)
            return {"loss": 0.0}

    model = CustomStep()
    model.compile("sgd", "mse")
    with pytest.raises(SystemExit):
        model.fit(X, Y, verbose=0)
    lines = pathlib.Path(__file__).read_text().splitlines()
    line = 1 + lines.index("        model.fit(X, Y, verbose=0)")
    output = capsys.readouterr().err
    assert f"line {line})" in output
    assert "write 'tfparallel_trainer.fit(model, X, Y, verbose=0)' there" in output


class Reaching(tf.distribute.OneDeviceStrategy):
    """Stands for a strategy that may reach others."""


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, index=0, cluster={"worker": ["a:1"], "ps": ["d:1"]})


def evaluator(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "evaluator", 0)


def server(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, "ps", 0)


def dynamic(monkeypatch: pytest.MonkeyPatch) -> None:
    configure(monkeypatch, cluster={"worker": {"1": "b:1"}, "ps": ["d:1"]})


def nonsense(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(environment.TF_CONFIG, "nonsense")


def exchanging(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "horovod", types.ModuleType("horovod"))


def searching(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keras_tuner", types.ModuleType("keras_tuner"))


def with_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keras.backend, "backend", lambda: "jax")


def joined(monkeypatch: pytest.MonkeyPatch) -> None:
    device = types.SimpleNamespace(name="/job:worker/replica:0/task:1/device:CPU:0")
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda *_: [device])


@pytest.mark.parametrize(
    "surroundings",
    [alone, evaluator, server, dynamic, nonsense, exchanging, searching, with_jax, joined],
)
def test_nothing_wrong_is_said_of_others(
    surroundings: Callable[[pytest.MonkeyPatch], None],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    surroundings(monkeypatch)
    model = a_model()
    before = model.get_weights()
    take_step(model)
    assert not all(map(np.array_equal, model.get_weights(), before))
    assert (capsys.readouterr().err, first_step._watched) == ("", [])
    assert "apply" not in vars(keras.optimizers.Optimizer)


def test_a_strategy_that_may_reach_others_is_left_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with Reaching("CPU:0").scope():
        model = a_model()
    fit(model)
    assert capsys.readouterr().err == ""


def test_a_job_that_continues_says_so_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(environment.ON_SEPARATE_TRAINING, "Continue")
    model = a_model()
    fit(model)
    fit(model)
    output = capsys.readouterr().out
    assert output.count("[worker-1] warning: worker-1 trains a model of its own (") == 1


TOGETHER = """
import os
import keras
import tensorflow as tf

strategy = tf.distribute.MultiWorkerMirroredStrategy()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(0.1)
    optimizer.build(model.trainable_variables)

@tf.function
def train(x, y):
    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean((model(x) - y) ** 2)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables))
        return loss
    return strategy.run(step, args=(x, y))

train(tf.ones((8, 4)), tf.ones((8, 1)))
print("trained together", flush=True)
"""


WATCHING = """
from tfparallel_trainer.scripts import first_step

first_step.stop()
first_step.watch()
"""
"""What Python does at its start, and a forked process has not done."""


def run(runs: trainings.Runs, text: str, action: str = "Stop") -> list[launch.Ended]:
    """Run a script in two processes whose job asks for the look at the first step."""
    path = runs.folder / "train.py"
    path.write_text(WATCHING + text)
    variables = {environment.ON_SEPARATE_TRAINING: action}
    with runs.group(runs.environments(processes=2, variables=variables), (str(path),)) as group:
        return group.wait()


def test_a_loop_under_a_strategy_of_several_processes_is_left_alone(
    runs: trainings.Runs,
) -> None:
    ended = run(runs, TOGETHER)
    assert {process.code for process in ended} == {0}, ended
    assert all("trained together" in process.output for process in ended)


DATA = """
import numpy as np

def build_model():
    keras.utils.set_random_seed(TASK)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model

import json, os
TASK = int(json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "worker")
x, y = np.ones((64, 4), "float32"), np.ones((64, 1), "float32")
test_x, test_y = x, y
"""
END = "print('weights', [weight.tolist() for weight in model.get_weights()], flush=True)\n"


def page_script(sign: str) -> str:
    """The code of fit.md's first diff: + as it is to be, - as it was, made a whole script."""
    block = pages.blocks(paths.PAGES / "how-to/fit.md", "diff")[0]
    lines = [line for line in block.splitlines() if not line or line[0] in (sign, " ")]
    imports, model, training = re.split(
        r"^(model = .*)$", "\n".join(x[1:] for x in lines), flags=re.M
    )
    return f"{imports}{DATA}{model}{training}\n{END}"


def test_replicas_that_train_separate_models_are_stopped(runs: trainings.Runs) -> None:
    ended = run(runs, page_script("-"))
    assert {process.code for process in ended} == {exits.Exit.USER_ERROR}, ended
    for name, process in zip(("chief-0", "worker-0"), ended, strict=True):
        assert (
            f"[{name}] error: {name} trains a model of its own (train.py, line " in process.errors
        )
        assert (
            "'history = tfparallel_trainer.fit(model, x, y, epochs=5, batch_size=" in process.errors
        )
        assert "weights" not in process.output


def test_the_first_code_of_the_page_on_fit_trains_one_model(runs: trainings.Runs) -> None:
    ended = run(runs, page_script("+"))
    assert {process.code for process in ended} == {0}, ended
    first, second = (re.findall("weights .*", process.output) for process in ended)
    assert first == second != []
