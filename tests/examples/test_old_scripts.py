"""Scripts that call Keras' own fit on several processes are told what to change.

The trainer's wheel is installed into an environment of its own, as an image has it: Python then
loads what explains such errors when it starts.
"""

import json
import os
import pathlib
import re
import subprocess
import sys

import pytest
import yaml

from testing import invocation
from testing.operator import local_jobs as jobs
from tfparallel_trainer.contract import environment, exits

pytestmark = pytest.mark.usefixtures("processes")

ROOT = pathlib.Path(__file__).parents[2]
PAGE = (ROOT / "docs/how-to/old-scripts.md").read_text(encoding="utf-8")
WITH_SERVERS = """
import keras
import tensorflow as tf
resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = tf.distribute.ParameterServerStrategy(resolver)
with strategy.scope():
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
model.fit(tf.ones((32, 4)), tf.ones((32, 1)), batch_size=8)
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A Python that has the trainer's wheel, and everything else from this one."""
    folder = tmp_path_factory.mktemp("environment")
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet")
    build = ("wheel", "--no-deps", "--no-build-isolation", "--wheel-dir", str(folder / "wheels"))
    subprocess.run((*pip, *build, str(ROOT / "trainer")), check=True, timeout=200)
    subprocess.run((sys.executable, "-m", "venv", "--without-pip", folder / "venv"), check=True)
    python = folder / "venv/bin/python"
    wheels = map(str, (folder / "wheels").glob("*.whl"))
    install = ("--python", str(python), "install", "--no-deps", "--no-index")
    subprocess.run((*pip, *install, *wheels), check=True, timeout=200)
    [packages] = (folder / "venv").glob("lib/python*/site-packages")
    others = [path for path in sys.path if pathlib.Path(path).name == packages.name]
    (packages / "others.pth").write_text("\n".join(others))
    return python


def run(python: pathlib.Path, *arguments: str, **variables: str) -> invocation.Ended:
    """Run this Python in an environment without TF_CONFIG, unless the variables have it."""
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return invocation.execute(
        str(python),
        *arguments,
        env={**kept, "CUDA_VISIBLE_DEVICES": "-1", **variables},
        timeout=240,
    )


def run_job(python: pathlib.Path, file: pathlib.Path, output: pathlib.Path, *changes: str) -> str:
    """Run a job that fails; give what was shown."""
    job = ("run", str(file), "--output", str(output), *changes)
    paths = os.pathsep.join(str(ROOT / product) for product in ("client", "operator"))
    done = run(python, "-m", "tfparallel", *job, PYTHONPATH=paths)
    assert done.returncode == 1, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def test_the_page_shows_the_message_that_an_unchanged_script_gets(
    python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    example = ROOT / "examples/old-fit"
    [(before, after)] = re.findall(r"```diff\n-(.*)\n\+(.*)\n```", PAGE)
    changed = (example / "train.py").read_text()
    assert after in changed
    (tmp_path / "train.py").write_text(changed.replace(after, before))
    (tmp_path / "job.yaml").write_text((example / "job.yaml").read_text())
    together = jobs.ending_together(tmp_path / "job.yaml", tmp_path)
    shown = run_job(python, tmp_path / "job.yaml", tmp_path / "out", *together)
    _, sentence = re.findall(r"```\n\[worker-0\] error: (.*)\n```", PAGE)
    errors = re.findall(r"^\[(chief-0|worker-0)\] error: (.*)", shown, re.M)
    first, second = errors[:2]
    assert {first[0], second[0]} == {"chief-0", "worker-0"}
    assert (first[1], second[1]) == (sentence, f"the same as that of {first[0]}")
    assert shown.index("Attempt to convert a value (PerReplica") < shown.index(sentence)
    status = json.loads((tmp_path / "out/status.json").read_text())
    [failed] = [condition for condition in status["conditions"] if condition["type"] == "Failed"]
    assert (failed["reason"], status["attempt"]) == ("ReplicaFailed", 1)
    assert f"exited with code {exits.Exit.USER_ERROR.value}" in failed["message"]
    assert "Keras 3 cannot fit under MultiWorkerMirroredStrategy" in failed["message"]


def test_with_servers_there_is_more_to_change(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(WITH_SERVERS)
    command = ["python", "train.py"]
    document = jobs.job({"Chief": command, "Worker": command, "PS": command})
    shown = run_job(python, jobs.write(tmp_path, document), tmp_path / "out")
    assert "you need to pass this dataset to ClusterCoordinator" in shown
    assert "Keras 3 cannot fit under ParameterServerStrategy in several processes" in shown
    assert "remove the strategy and the lines that start a tf.distribute.Server" in shown


ALONE = """
import pathlib
import sys

import keras
import numpy as np

x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
y = x[:, :1]

model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
model.compile("sgd", "mse")

history = model.fit(x, y, epochs=3)
model.save(pathlib.Path(sys.argv[1]) / f"{sys.argv[2]}.keras")
"""


def separate(folder: pathlib.Path, action: str) -> pathlib.Path:
    """Write a job of two replicas that train a model each, as the section on them has it."""
    (folder / "train.py").write_text(ALONE.lstrip("\n"))
    mount = {"volumeMounts": [{"name": "results", "mountPath": "/results"}]}
    claim = {"name": "results", "persistentVolumeClaim": {"claimName": "results"}}
    roles = {
        role: {
            "template": jobs.template(
                ["python", "train.py", "/results", role], pod_spec={"volumes": [claim]}, **mount
            )
        }
        for role in ("Chief", "Worker")
    }
    return jobs.write(folder, jobs.job(roles, onSeparateTraining=action))


def test_separate_models_that_a_job_wants_stand_in_its_status(
    python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    file, output = separate(tmp_path, "Continue"), tmp_path / "out"
    together = jobs.ending_together(file, tmp_path)
    paths = os.pathsep.join(str(ROOT / product) for product in ("client", "operator"))
    command = ("-m", "tfparallel", "run", str(file), "--output", str(output), *together)
    done = run(python, *command, PYTHONPATH=paths)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    for replica in ("chief-0", "worker-0"):
        assert f"[{replica}] warning: {replica} trains a model of its own (train.py, line 13)" in (
            done.stdout
        )
    status = json.loads((output / "status.json").read_text())
    [condition] = [
        condition for condition in status["conditions"] if condition["type"] == "SeparateTraining"
    ]
    assert (condition["status"], condition["reason"]) == ("True", "SeparateModels")
    assert "chief-0 trains a model of its own" in condition["message"]
    assert "SeparateModels: chief-0 trains" in done.stderr
    for model in ("Chief", "Worker"):
        assert (output / f"claims/results/{model}.keras").exists()
        assert f"claims/results/{model}.keras" in done.stdout


@pytest.mark.long
def test_separate_models_end_a_job(python: pathlib.Path, tmp_path: pathlib.Path) -> None:
    shown = run_job(python, separate(tmp_path, "Stop"), tmp_path / "out")
    [sentence, _] = re.findall(r"```\n\[worker-0\] error: (.*)\n```", PAGE)
    line = r"\(train\.py, line \d+\)"
    same = re.sub(line, "", sentence).replace("worker-0", "chief-0")
    assert same in re.sub(line, "", shown)
    assert not list((tmp_path / "out/claims").rglob("*.keras"))


@pytest.mark.long
@pytest.mark.parametrize("example", ["tf-config", "old-coordinator", "fit", "from-tfjob"])
def test_examples_that_train_together_are_left_alone(
    example: str, python: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    paths = os.pathsep.join(str(ROOT / product) for product in ("client", "operator"))
    file = ROOT / "examples" / example / "job.yaml"
    command = ("-m", "tfparallel", "run", str(file), "--output", str(tmp_path / "out"))
    done = run(python, *command, PYTHONPATH=paths)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    assert "trains a model of its own" not in done.stdout


def test_other_programs_are_left_alone(python: pathlib.Path) -> None:
    config = json.dumps(
        {"cluster": {"worker": ["a:1", "b:1"]}, "task": {"type": "worker", "index": 0}}
    )
    show = "import sys; print('tfparallel_trainer' in sys.modules, 'json' in sys.modules)"
    assert run(python, "-c", show).stdout == "False False\n"
    assert run(python, "-c", show, TF_CONFIG=config).stdout == "False False\n"
    script_replica = {"TF_CONFIG": config, environment.ON_SEPARATE_TRAINING: "Stop"}
    assert run(python, "-c", show, **script_replica).stdout == "True False\n"
    failing = "raise ValueError('mine')"
    with_keras = f"import keras\n{failing}"
    for variables, script in (
        ({}, failing),
        (script_replica, with_keras),
        ({**script_replica, "TF_CONFIG": "nonsense"}, failing),
    ):
        done = run(python, "-c", script, **variables)
        assert done.returncode == 1
        assert done.stderr.rstrip().endswith("ValueError: mine")


def test_what_fit_refuses_stands_in_the_status(tmp_path: pathlib.Path) -> None:
    (tmp_path / "train.py").write_text(
        "import keras\nimport tfparallel_trainer\n"
        "tfparallel_trainer.fit(keras.Sequential([keras.layers.Dense(1)]), [[1.0]], [[1.0]])\n"
    )
    document = jobs.job({"Worker": ["python", "train.py"]})
    command = ("-m", "tfparallel", "run", str(jobs.write(tmp_path, document)))
    paths = os.pathsep.join(str(ROOT / product) for product in ("client", "operator", "trainer"))
    done = run(
        pathlib.Path(sys.executable), *command, "--output", str(tmp_path / "out"), PYTHONPATH=paths
    )
    assert done.returncode == 1
    assert "exited with code 65" in done.stderr
    assert "make it an array with numpy.asarray" in done.stderr


SHARDED = """
from tensorflow import keras
import tensorflow as tf

resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
if resolver.task_type in ("worker", "ps"):
    tf.distribute.Server(
        resolver.cluster_spec(), job_name=resolver.task_type, task_index=resolver.task_id
    ).join()
strategy = tf.distribute.ParameterServerStrategy(
    resolver, variable_partitioner=tf.distribute.experimental.partitioners.FixedShardsPartitioner(2)
)
with strategy.scope():
    model = keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1), "mse")


def examples(_):
    data = tf.data.Dataset.from_tensors((tf.ones((4,)), tf.ones((1,))))
    return data.repeat().batch(8)


history = model.fit(
    keras.utils.experimental.DatasetCreator(examples), epochs=3, steps_per_epoch=4, verbose=0
)
first, *_, last = history.history["loss"]
print(f"parts {len(model.layers[0].kernel.variables)}, learned {last < first}", flush=True)
"""


def with_keras_2(text: str, folder: pathlib.Path, **replicas: int) -> str:
    """Run a script as the section on Keras 2 says; give what was shown."""
    [block] = re.findall(r"```yaml\n(env:.*?)```", PAGE, flags=re.DOTALL)
    (folder / "train.py").write_text(text)
    template = jobs.template(["python", "train.py"], **yaml.safe_load(block))
    roles = {role: {"replicas": count, "template": template} for role, count in replicas.items()}
    file = jobs.write(folder, jobs.job(roles))
    together = jobs.ending_together(file, folder) if "PS" not in replicas else []
    paths = os.pathsep.join(str(ROOT / product) for product in ("client", "operator", "trainer"))
    command = ("-m", "tfparallel", "run", str(file), "--output", str(folder / "out"), *together)
    done = run(pathlib.Path(sys.executable), *command, PYTHONPATH=paths)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.mark.long
def test_with_keras_2_fit_runs_as_it_was(tmp_path: pathlib.Path) -> None:
    [(before, after)] = re.findall(r"```diff\n-(.*)\n\+(.*)\n```", PAGE)
    text = (ROOT / "examples/old-fit/train.py").read_text()
    for new, old in (
        (after, before),
        ("import keras\n", "from tensorflow import keras\n"),
        ("import tfparallel_trainer\n", ""),
    ):
        assert new in text
        text = text.replace(new, old)
    shown = with_keras_2(text, tmp_path, Chief=1, Worker=1)
    accuracies = re.findall(r"accuracy (\d\.\d+) on 360 images", shown)
    assert len(accuracies) == 2
    assert min(map(float, accuracies)) > 0.8


@pytest.mark.long
def test_with_keras_2_variables_are_divided_over_servers(tmp_path: pathlib.Path) -> None:
    shown = with_keras_2(SHARDED, tmp_path, Chief=1, Worker=1, PS=2)
    assert "parts 2, learned True" in shown
