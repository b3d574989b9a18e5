"""Jobs whose steps XLA compiles, or cannot."""

import pathlib

import pytest
import yaml

from testing import pages, paths
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits

MODEL = """
import keras
import numpy as np
import tensorflow as tf


def call(x):
    return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], x.dtype), x.shape)


def build_model():
    layers = [keras.Input((4,)), keras.layers.Dense(4, "tanh"), MIDDLE, keras.layers.Dense(1)]
    return keras.Sequential(layers)


def compile_model(model):
    model.compile(keras.optimizers.Adam(0.01), "mse", metrics=["mae"], jit_compile=JIT)


def training_data():
    x = np.random.default_rng(0).normal(size=(22, 4)).astype("float32")
    return x, x[:, :1]
"""
KNOWN = 'keras.layers.Dense(4, "relu")'
UNKNOWN = "keras.layers.Lambda(call, (4,))"


def choice_of_the_page() -> str:
    blocks = pages.blocks(paths.PAGES / "how-to/model-interface.md", "yaml")
    (job,) = [block for block in blocks if "jitCompile" in block]
    choice: str = yaml.safe_load(job)["spec"]["trainer"]["jitCompile"]
    return choice


def train(
    folder: pathlib.Path, middle: str, jit: str, choice: str, processes: int = 1
) -> list[launch.Ended]:
    (folder / "model.py").write_text(MODEL.replace("MIDDLE", middle).replace("JIT", jit))
    spec: dict[str, object] = {
        "epochs": 2,
        "globalBatchSize": 8,
        "verify": "Auto",
        "jitCompile": choice,
    }
    environments = launch.environments(folder, folder, spec, processes=processes)
    with trainings.Runs(folder).group(environments) as group:
        return group.wait(90)


@pytest.mark.parametrize("processes", [1, 2])
def test_a_compiled_job_trains_and_equals_one_process(
    tmp_path: pathlib.Path, processes: int
) -> None:
    ended = train(tmp_path, KNOWN, '"auto"', choice_of_the_page(), processes)
    assert [process.code for process in ended] == [0] * processes, ended
    assert "XLA compiles steps" in ended[0].output
    if processes > 1:
        assert "equals one process" in ended[0].output


def test_a_model_that_xla_cannot_compile_is_refused_before_a_step(tmp_path: pathlib.Path) -> None:
    ended = train(tmp_path, UNKNOWN, '"auto"', "On", 2)
    assert [process.code for process in ended] == [exits.Exit.BAD_CONFIGURATION] * 2, ended
    assert (
        "trainer.jitCompile is 'On', and XLA cannot compile the training step: it does not know the"
        " operation PyFunc"
    ) in ended[0].errors
    assert "Set jitCompile to Off." in ended[0].errors


@pytest.mark.parametrize(
    ("middle", "jit", "choice", "line"),
    [
        (KNOWN, "True", "Auto", "XLA compiles steps"),
        (UNKNOWN, "True", "Auto", "XLA compiles no step: it does not know the operation PyFunc"),
        (KNOWN, "True", "Off", None),
        (KNOWN, '"auto"', "Auto", None),
    ],
)
def test_a_job_follows_the_module_unless_it_chooses(
    tmp_path: pathlib.Path, middle: str, jit: str, choice: str, line: str | None
) -> None:
    (ended,) = train(tmp_path, middle, jit, choice)
    assert ended.code == 0, ended
    assert "XLA" not in ended.output if line is None else line in ended.output
