"""The examples, end to end: real TensorFlow processes on loopback.

tests/e2e trains every example in pods. Those of the long tier here show what a log does not tell,
or what other tests show: tests/trainer trains with images that are shifted, and
tests/client/backends/local ends servers whose chief is done.
"""

import pathlib
import re

import keras
import pytest

from testing import invocation
from testing.operator import local_jobs as jobs
from testing.trainer import reference
from tfparallel_trainer.contract import outputs

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.timeout(900)]

_EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"


def _run(example: str, folder: pathlib.Path, *arguments: str, file: str = "job.yaml") -> str:
    """Run an example in a folder of its own; return what it wrote to standard output."""
    job = str(_EXAMPLES / example / file)
    done = invocation.run("run", job, "--output", "out", *arguments, folder=folder, timeout=400)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


def _run_together(example: str, folder: pathlib.Path) -> str:
    """Run an example all of whose processes are to be heard to their end."""
    return _run(example, folder, *jobs.ending_together(_EXAMPLES / example / "job.yaml", folder))


@pytest.mark.long
def test_the_shipped_trainer_learns_digits_and_resumes(tmp_path: pathlib.Path) -> None:
    half = ("--set", "spec.trainer.epochs=5")
    first = _run("digits", tmp_path, *half)
    results = tmp_path / "out/claims/digits/digits"
    assert f"  {results.relative_to(tmp_path)}/{outputs.MODEL}\n" in first
    whole = _run("digits", tmp_path)
    written = outputs.Summary.model_validate_json((results / outputs.SUMMARY).read_text())
    steps = int(written.steps)
    assert f"steps         {steps}" in whole
    assert f"step {steps // 2}/" not in whole  # what the first run did is not done again
    assert float(written.metrics["val_accuracy"]) > 0.9
    x, y = reference.load("model", _EXAMPLES / "digits").evaluation_data()
    model = keras.saving.load_model(results / outputs.MODEL, compile=False)
    accuracy = float((model.predict(x, verbose=0).argmax(axis=-1) == y).mean())
    assert accuracy == pytest.approx(float(written.metrics["val_accuracy"]), abs=1e-6)


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "file"), [("mnist", "job.yaml"), ("mnist-servers", "servers.yaml")]
)
def test_mnist_is_learned_from_images_that_are_shifted(
    name: str, file: str, tmp_path: pathlib.Path
) -> None:
    _run("mnist", tmp_path, "--set", "spec.trainer.epochs=3", file=file)
    written = tmp_path / "out/claims/mnist" / name / outputs.SUMMARY
    summary = outputs.Summary.model_validate_json(written.read_text())
    assert summary.epochs == 3
    assert float(summary.metrics["val_accuracy"]) >= 0.95


@pytest.mark.long
def test_a_script_that_calls_fit_trains_on_two_workers(tmp_path: pathlib.Path) -> None:
    shown = _run_together("fit", tmp_path)
    accuracies = dict(re.findall(r"^\[(chief-0|worker-0)\] accuracy (\S+) after", shown, re.M))
    assert accuracies["chief-0"] == accuracies["worker-0"]
    assert float(accuracies["chief-0"]) > 0.9
    assert re.search(r"^\[chief-0\] 23/23 .* accuracy: .* val_loss: ", shown, re.M)
    assert re.search(r"^val_accuracy  0\.9", shown, re.M)  # reported to the runner
    assert keras.saving.load_model(tmp_path / "out/claims/fit/best.keras").count_params() > 0


def test_workers_and_servers_get_a_chief_and_end_with_it(tmp_path: pathlib.Path) -> None:
    beside = ("--set", "spec.tfReplicaSpecs.Evaluator.replicas=1")
    shown = _run("digits-servers", tmp_path, "--set", "spec.trainer.epochs=4", *beside)
    assert "[evaluator-0] step 180  evaluation  loss" in shown
    written = tmp_path / "out/claims/digits-servers/digits-servers" / outputs.SUMMARY
    summary = outputs.Summary.model_validate_json(written.read_text())
    assert summary.steps == 4 * 45
    assert float(summary.metrics["val_accuracy"]) > 0.9
    mean, most = (float(summary.metrics[f"staleness_{name}"]) for name in ("mean", "max"))
    assert 0 <= mean <= most < summary.steps
    for name in ("worker-0", "worker-1", "ps-0"):
        assert f"[{name}] training is done" in shown


@pytest.mark.long
def test_a_custom_coordinator_ends_its_servers(tmp_path: pathlib.Path) -> None:
    shown = _run("old-coordinator", tmp_path)
    assert "[chief-0] epoch 6 of 6" in shown
    assert "[chief-0] 264 steps" in shown  # of two workers: Keras' own counter loses some
    match = re.search(r"^\[chief-0\] accuracy (\S+) on 360 images", shown, re.M)
    assert match is not None
    assert float(match[1]) > 0.85
