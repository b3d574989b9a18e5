"""The examples of model split, end to end: what is split learns what the whole model learns.

One stands for all in continuous integration: tests/trainer divides small models in all these ways,
and lets them go on under other meshes.
"""

import functools
import json
import os
import pathlib
import re
import statistics

import keras
import pytest
import yaml

from benchmarks.pages import plans
from testing import invocation
from testing.trainer import reference
from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import outputs, plan

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.timeout(900)]

EXAMPLES = pathlib.Path(__file__).parents[2] / "examples"
STEPS = 12
"""Less than an epoch of any example."""
BATCH = 64


def run(file: pathlib.Path, folder: pathlib.Path, *changes: str) -> tuple[str, pathlib.Path]:
    """Run a job for some steps; give what it showed and where its results are."""
    length = ("spec.trainer.epochs=null", f"spec.trainer.steps={STEPS}")
    settings = [f"--set={change}" for change in (*length, *changes)]
    variables = {**os.environ, "COLUMNS": "400"}  # else headings break where nobody has a terminal
    arguments = ("run", str(file), "--output", "out", *settings)
    done = invocation.run(*arguments, folder=folder, env=variables, timeout=400)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    job = yaml.safe_load(file.read_text())
    claim = job["spec"]["trainer"]["checkpoint"]["claim"]
    return done.stdout, folder / "out/claims" / claim / job["metadata"]["name"]


def last_metrics(results: pathlib.Path) -> dict[str, float]:
    """The metrics at the end."""
    text = (results / outputs.SUMMARY).read_text()
    return {k: float(v) for k, v in outputs.Summary.model_validate_json(text).metrics.items()}


@functools.cache
def whole(folder: str) -> dict[str, float]:
    """What the model of an example comes to in a plain Keras loop that holds all of it."""
    module = reference.load("model", EXAMPLES / folder)
    weights, losses = reference.train(module, STEPS, BATCH, 0)
    model = module.build_model()
    module.compile_model(model)
    model.set_weights(weights)
    evaluated = model.evaluate(*module.evaluation_data(), verbose=0, return_dict=True)
    keras.utils.clear_session()
    means = {"loss": statistics.fmean(losses)}
    return {**means, **{f"val_{name}": value for name, value in evaluated.items()}}


def placement_of(folder: pathlib.Path) -> job_status.PlacementStatus:
    """Where the status of a run says that the parts of the model are."""
    status = json.loads((folder / "out/status.json").read_text())
    return job_status.PlacementStatus.model_validate(status["placement"])


def assert_learned(results: pathlib.Path, folder: str) -> None:
    """See that a run has come to what the whole model comes to, and that Keras reads its file."""
    metrics = last_metrics(results)
    assert metrics.keys() == {"loss", "accuracy", "val_loss", "val_accuracy"}
    for metric, expected in whole(folder).items():
        # Which of two answers that are all but equal is the better one may differ.
        near = 0.005 if metric.endswith("accuracy") else 1e-3 * expected
        assert metrics[metric] == pytest.approx(expected, abs=near), metric
    model = keras.saving.load_model(results / outputs.MODEL, compile=False)
    assert model.count_params() > 0


@pytest.mark.parametrize(
    "name",
    [
        *(
            pytest.param(name, marks=pytest.mark.long)
            for name in (
                "split-cnn/data",
                "split-cnn/tensor",
                "split-cnn/spatial",
                "split-cnn/hybrid",
                "split-deep-cnn/job",
                "split-decoder/job",
                "split-embedding/job",
            )
        ),
        "split-cnn/shardings",
    ],
)
def test_an_example_comes_to_what_the_whole_model_comes_to(
    name: str, tmp_path: pathlib.Path
) -> None:
    file = EXAMPLES / f"{name}.yaml"
    shown, results = run(file, tmp_path)
    mesh = yaml.safe_load(file.read_text())["spec"]["mesh"]
    placement = placement_of(tmp_path)
    assert placement.mesh.model_dump(mode="json", include=set(mesh)) == mesh
    assert len(placement.stages) == mesh.get("stage", 1)
    assert "Weights a device" in shown
    assert "retracing" not in shown
    assert all(float(stage.busy_seconds or 0) > 0 for stage in placement.stages)
    assert_learned(results, file.parent.name)
    pipeline = plan.Pipeline.model_validate_json((results / outputs.PIPELINE).read_bytes())
    assert pipeline.planned is not None
    assert pipeline.planned.stages == plans.planned(file).stages
    works = [(span.stage, span.work, span.microbatch) for span in pipeline.planned.spans]
    assert sorted((span.stage, span.work, span.microbatch) for span in pipeline.spans) == sorted(
        work for work in works if work[1] != "message"
    )
    assert all(span.begin <= span.end for span in pipeline.spans)
    planned = r"stages +wait \d+% of the schedule \(planned \d+%\) · a step "
    assert re.search(planned, shown)
    drawn = (results / "pipeline.svg").read_text()
    assert "Measured: a step of one replica" in drawn
    assert "Planned: a step of one replica" in drawn


@pytest.mark.long
def test_the_planner_divides_the_example(tmp_path: pathlib.Path) -> None:
    file = EXAMPLES / "split-cnn/auto.yaml"
    shown, results = run(file, tmp_path)
    placement = placement_of(tmp_path)
    assert placement.mesh.for_devices(4) == placement.mesh
    assert any(reason.startswith("The next best (") for reason in placement.reasons)
    assert all(float(stage.planned_seconds or 0) > 0 for stage in placement.stages)
    assert "the planner's choice: Stage" in shown
    assert "Planned" in shown
    assert_learned(results, "split-cnn")


@pytest.mark.long
def test_two_models_go_on_under_another_mesh(tmp_path: pathlib.Path) -> None:
    page = (EXAMPLES.parent / "docs/how-to/model-split.md").read_text()
    file = EXAMPLES / "split-two-models/job.yaml"
    [changed] = re.findall(r"job\.yaml --output two --set '(spec\.mesh=.*)'", page)
    _, results = run(file, tmp_path)
    placement = placement_of(tmp_path)
    assert [stage.layers for stage in placement.stages] == [
        "sees/conv2d to sees/dense_2",
        "tells/dense to tells/dense_1",
    ]
    assert_learned(results, "split-two-models")
    shown, _ = run(file, tmp_path, changed, f"spec.trainer.steps={STEPS + 2}")
    assert f"resuming after step {STEPS} from" in shown
    mesh = placement_of(tmp_path).mesh
    assert (mesh.stage, mesh.tensor) == (1, 2)
    status = json.loads((tmp_path / "out/status.json").read_text())
    assert status["progress"]["step"] == STEPS + 2
