"""Which errors of scripts are explained: Keras' fit in several processes, read-only folders."""

import contextlib
import json
import pathlib
from typing import Any

import keras
import numpy as np
import pytest

from testing import disks
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.scripts import explanation


def caught(call: Any) -> BaseException:
    with pytest.raises(Exception) as raised_error:  # whatever Keras raises
        call()
    return raised_error.value


def test_an_error_of_fit_on_a_model_of_one_process_is_not_explained() -> None:
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    wrong = np.ones((3, 5), "float32")
    assert explanation.find(caught(lambda: model.fit(wrong, wrong, verbose=0))) is None
    assert explanation.find(caught(lambda: model(wrong))) is None
    assert explanation.find(caught(lambda: 1 / 0)) is None


@pytest.mark.parametrize(
    ("method", "strategy", "message"),
    [
        ("fit", "MultiWorkerMirroredStrategy", "tfparallel_trainer.fit(model, …)"),
        ("fit", "ParameterServerStrategy", "let every process call it"),
        ("predict", "ParameterServerStrategy", "predicts without the strategy"),
        ("evaluate", "MultiWorkerMirroredStrategy", "the validation_data that it is given"),
    ],
)
def test_each_call_has_its_remedy(method: str, strategy: str, message: str) -> None:
    text = explanation.explain(explanation.UnsupportedCall(method, strategy, "gone.py", 3))
    assert f"Keras 3 cannot {method} under {strategy}" in text
    assert "gone.py, line 3" in text
    assert message in text


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("import os; os.makedirs('out/a')", "OSError: [Errno 30] Read-only file system: 'out'."),
        ("import keras; keras.Model(x := keras.Input((1,)), x).save('m.keras')", "'m.keras'."),
        ("import tensorflow as tf; tf.io.gfile.makedirs('out')", "out; Read-only file system."),
    ],
)
def test_a_write_into_a_folder_that_is_read_only_is_explained(
    line: str, message: str, tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = {"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 0}}
    env = {environment.TF_CONFIG: json.dumps(config)}
    with disks.mounted(tmp_path / "source", "ro") as folder, contextlib.chdir(folder):
        script = compile(f"\n{line}\n", f"{folder}/train.py", "exec")
        assert explanation.report(caught(lambda: exec(script, {})), env)  # noqa: S102
        assert not explanation.report(caught(lambda: open("gone/file")), env)  # noqa: SIM115
    sentence = capsys.readouterr().err
    assert sentence.startswith("[worker-0] error: train.py, line 2: ")
    assert (
        f"{message} In a cluster, the folder of the script is read-only: write below the"
        in sentence
    )


SCRIPT = """
import time

import keras
import numpy as np
import tensorflow as tf

import tfparallel_trainer

tfparallel_trainer.start()
if tf.distribute.cluster_resolver.TFConfigClusterResolver().task_type == "chief":
    time.sleep({pause})
strategy = tf.distribute.{strategy}()
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
x, y = np.ones((32, 4)), np.ones((32, 1))
model.{call}
print("each trained alone")
"""
FIT = "fit(x, y, verbose=0)"
TOGETHER = "MultiWorkerMirroredStrategy"


def run(
    runs: trainings.Runs, text: str, *, servers: bool = False, new: bool = False
) -> list[launch.Ended]:
    """Run a script in two processes; with servers only the chief, which ends before it looks."""
    path = runs.folder / "train.py"
    path.write_text(text)
    environments = runs.environments(processes=2)
    if servers:
        environments = [runs.server_environments()["chief-0"]]
    with runs.group(environments, (str(path),), new=new) as group:
        return group.wait()


@pytest.mark.parametrize(
    ("strategy", "call", "servers", "pause", "message"),
    [
        ("get_strategy", FIT, False, 0, "fit in several processes (train.py, line 18): each would"),
        ("get_strategy", FIT, True, 0, "fit in several processes (train.py, line 18): each would"),
        (TOGETHER, FIT, False, 0, "fit under MultiWorkerMirroredStrategy in"),
        # The worker asks the chief's server for a group before the chief has its strategy.
        (TOGETHER, "evaluate(x, y, verbose=0)", False, 2, "evaluate under Multi"),
    ],
)
def test_after_start_keras_fit_is_explained_too(
    strategy: str, call: str, servers: bool, pause: int, message: str, runs: trainings.Runs
) -> None:
    text = SCRIPT.format(strategy=strategy, call=call, pause=pause)
    ended = run(runs, text, servers=servers, new=strategy == "get_strategy" and not servers)
    assert {process.code for process in ended} == {exits.Exit.USER_ERROR}, ended
    for name, process in zip(("chief-0", "worker-0"), ended, strict=not servers):
        assert f"[{name}] error: Keras 3 cannot {message}" in process.errors
        assert "alone" not in process.output
    if call is FIT:
        assert "write 'tfparallel_trainer.fit(model, x, y, verbose=0)' there" in ended[0].errors


def test_what_fit_refuses_at_once_has_its_exit_code(runs: trainings.Runs) -> None:
    script = (
        "import keras, numpy, tfparallel_trainer\n"
        "swap = keras.callbacks.SwapEMAWeights()\n"
        "data = numpy.ones((8, 2)), numpy.ones((8, 1))\n"
        "tfparallel_trainer.fit(lambda: 1 / 0, *data, callbacks=[swap])\n"
    )
    (ended,) = run(runs, script, servers=True)
    assert ended.code == exits.Exit.USER_ERROR, ended
    message = "The callback SwapEMAWeights cannot be honoured with ParameterServer: servers refuse"
    assert f"train.py:4: {message}" in ended.errors
