"""`tfparallel submit` warns of a model that does not fit its GPUs, before it creates the job."""

import pathlib

import pytest
from click import testing as click_testing

from tfparallel.cli import app
from tfparallel.planning import fit, planner_process

JOB = """
apiVersion: tfparallel.dev/v1alpha1
kind: TFParallelJob
metadata: {name: large}
spec:
  strategy: ModelSplit
  mesh: {data: 2}
  trainer: {epochs: 1, globalBatchSize: 32}
  tfReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          nodeSelector: {nvidia.com/gpu.product: Tesla-T4}
          containers: [{name: tensorflow, resources: {limits: {nvidia.com/gpu: 1}}}]
"""

MODULE = """
import keras
import numpy as np

def build_model():
    return keras.Sequential([keras.Input((8,)), *(keras.layers.Dense(20_000) for _ in range(3))])

def compile_model(model):
    model.compile(keras.optimizers.Adam(), "mse")

def training_data():
    return np.zeros((16, 8)), np.zeros((16, 1))
"""
"""Weights of 3.2 GB; with gradients, slots and the update's memory five times as much."""


@pytest.fixture
def job(tmp_path: pathlib.Path) -> pathlib.Path:
    (tmp_path / "model.py").write_text(MODULE)
    file = tmp_path / "job.yaml"
    file.write_text(JOB)
    return file


@pytest.mark.usefixtures("processes")
def test_submit_says_what_would_make_a_model_fit_its_gpus(job: pathlib.Path) -> None:
    """No cluster answers, so nothing is created; the warning comes before that."""
    nowhere = job.with_name("kubeconfig")
    command = ["submit", str(job), "--kubeconfig", str(nowhere)]
    result = click_testing.CliRunner().invoke(app.tfparallel, command)
    assert result.exit_code != 0
    warning, _, failure = result.stderr.partition(" The job is created all the same.\n")
    assert warning.startswith("warning: The model does not fit 2 devices of 13.5 GiB")
    assert "The model fits with mesh.shardOptimizer, " in warning
    assert "kubeconfig" in failure
    assert fit.find_misfit(job, ("spec.mesh.shardOptimizer=true",)) is None


@pytest.mark.usefixtures("processes")
def test_a_module_that_does_not_run_here_is_no_misfit(
    job: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job.with_name("model.py").write_text(f"import only_in_the_image\n{MODULE}")
    assert fit.find_misfit(job) is None
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("nodeSelector: {nvidia.com/gpu.product: Tesla-T4}", "nodeSelector: {disk: ssd}"),
        ("  strategy: ModelSplit\n  mesh: {data: 2}\n", "  strategy: MultiWorkerMirrored\n"),
        ("trainer: {", "trainer: {module: elsewhere.py, "),
    ],
)
def test_what_cannot_be_known_is_not_planned(
    job: pathlib.Path, monkeypatch: pytest.MonkeyPatch, old: str, new: str
) -> None:
    """Neither an unknown GPU, nor a model that each replica has all of, nor code in an image."""

    def ask(*_: object) -> None:
        raise AssertionError("the planner was asked")

    monkeypatch.setattr(planner_process, "ask", ask)
    job.write_text(JOB.replace(old, new))
    assert fit.find_misfit(job) is None
