"""The examples of model split, end to end: what is split learns what the whole model learns."""

import functools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import keras
import pytest
import yaml

from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import outputs

pytestmark = pytest.mark.trainer

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
STEPS = 24
WHOLE = (
    "spec.strategy=null",
    "spec.mesh=null",
    "spec.tfReplicaSpecs.Worker.replicas=1",
    "spec.tfReplicaSpecs.Worker.devices=null",
)


def run(file: pathlib.Path, folder: pathlib.Path, *changes: str) -> tuple[str, pathlib.Path]:
    """Run a job for some steps; give what it showed and where its results are."""
    command = [sys.executable, "-m", "tfparallel_operator.cli", "run", str(file), "--output", "out"]
    length = ("spec.trainer.epochs=null", f"spec.trainer.steps={STEPS}")
    settings = [f"--set={change}" for change in (*length, *changes)]
    done = subprocess.run(
        [*command, *settings], cwd=folder, check=False, capture_output=True, text=True, timeout=400
    )
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    name = yaml.safe_load(file.read_text())["metadata"]["name"]
    return done.stdout, folder / "out/claims" / name / name


def told(results: pathlib.Path) -> dict[str, float]:
    """The metrics at the end."""
    text = (results / outputs.SUMMARY).read_text()
    return {k: float(v) for k, v in outputs.Summary.model_validate_json(text).metrics.items()}


@functools.cache
def whole(file: pathlib.Path) -> dict[str, float]:
    """What the model of an example comes to in one process that holds all of it."""
    with tempfile.TemporaryDirectory() as folder:
        return told(run(file, pathlib.Path(folder), *WHOLE)[1])


@pytest.mark.parametrize(
    "name", ["split-two-models/job", "split-cnn/spatial", "split-cnn/hybrid", "split-decoder/job"]
)
def test_an_example_comes_to_what_the_whole_model_comes_to(
    name: str, tmp_path: pathlib.Path
) -> None:
    file = EXAMPLES / f"{name}.yaml"
    shown, results = run(file, tmp_path)
    mesh = yaml.safe_load(file.read_text())["spec"]["mesh"]
    status = json.loads((tmp_path / "out/status.json").read_text())
    placement = job_status.PlacementStatus.model_validate(status["placement"])
    assert placement.mesh.model_dump(mode="json", include=set(mesh)) == mesh
    assert len(placement.stages) == mesh.get("stage", 1)
    assert "Weights a device" in shown
    assert all(float(stage.busy_seconds or 0) > 0 for stage in placement.stages)
    found = told(results)
    expected = whole(next(iter(sorted(file.parent.glob("*.yaml")))))
    assert found.keys() == expected.keys()
    for metric in ("val_loss", "loss"):
        assert found[metric] == pytest.approx(expected[metric], rel=1e-3), metric
    model = keras.saving.load_model(results / outputs.MODEL, compile=False)
    assert model.count_params() > 0


def test_the_planner_divides_the_example(tmp_path: pathlib.Path) -> None:
    file = EXAMPLES / "split-cnn/auto.yaml"
    shown, results = run(file, tmp_path)
    status = json.loads((tmp_path / "out/status.json").read_text())
    placement = job_status.PlacementStatus.model_validate(status["placement"])
    assert placement.mesh.over(4) == placement.mesh
    assert any(one.startswith("The next best (") for one in placement.reasons)
    assert all(float(stage.planned_seconds or 0) > 0 for stage in placement.stages)
    assert "the planner's choice: Stage" in shown
    assert "Planned" in shown
    assert told(results)["loss"] == pytest.approx(whole(file)["loss"], rel=1e-3)


def test_it_goes_on_under_another_mesh(tmp_path: pathlib.Path) -> None:
    page = (EXAMPLES.parent / "docs/model-split.md").read_text()
    file = EXAMPLES / "split-two-models/job.yaml"
    [changed] = re.findall(r"job\.yaml --output two --set '(spec\.mesh=.*)'", page)
    run(file, tmp_path, f"spec.trainer.steps={STEPS // 2}")
    shown, _ = run(file, tmp_path, changed)
    assert f"resuming after step {STEPS // 2} from" in shown
    status = json.loads((tmp_path / "out/status.json").read_text())
    assert (status["placement"]["mesh"]["stage"], status["placement"]["mesh"]["tensor"]) == (1, 2)
    assert status["progress"]["step"] == STEPS
