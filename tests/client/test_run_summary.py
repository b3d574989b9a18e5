import dataclasses
import datetime
import pathlib
import signal
import sys

import pytest

from tfparallel import run_summary
from tfparallel.backends.local import folders, local_run
from tfparallel.terminal import placement
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import job_file, outputs, plan
from tfparallel_trainer.contract import progress as contract_progress

_START = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
_STATUS = job_status.JobStatus(
    start_time=_START,
    completion_time=_START + datetime.timedelta(seconds=75),
    restarts=job_status.Restarts(failure=1, disruption=1),
    progress=job_status.ProgressStatus(step=7, total_steps=9, metrics={"loss": "0.5"}),
)


def _outcome(
    folder: pathlib.Path,
    end: names.ConditionType | None = None,
    stopped_by: signal.Signals | None = None,
) -> local_run.RunResult:
    job = load.parse_job(
        {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "digits"},
            "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 1}}, "trainer": {"epochs": 1}},
        }
    )
    status = _STATUS
    if end is not None:
        status = conditions.Stamp(_START, 1).set(status, end, True, "Why", "so")
    job = job.model_copy(update={"status": status})
    return local_run.RunResult(job, folders.Folders(folder), folder / "results", stopped_by)


@pytest.fixture
def results(tmp_path: pathlib.Path) -> pathlib.Path:
    """A folder with the results of a finished run."""
    folder = tmp_path / "results"
    (folder / outputs.CHECKPOINTS).mkdir(parents=True)
    (folder / outputs.MODEL).touch()
    content = outputs.Summary(
        done=True,
        job_digest="0" * 64,
        steps=9,
        epochs=1,
        attempt=2,
        duration_seconds=3.0,
        metrics={"loss": 0.123456789, "val_accuracy": "NaN"},
    )
    (folder / outputs.SUMMARY).write_text(content.model_dump_json(by_alias=True))
    return tmp_path


def _shown(text: str) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in text.splitlines()[1:])


def test_success_shows_what_the_trainer_summed_up(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_summary.show(_outcome(results, names.ConditionType.SUCCEEDED))
    out, err = capsys.readouterr()
    assert out.startswith("Succeeded: digits\n")
    assert {name: value.strip() for name, value in _shown(out).items()} == {
        "time": "1m15s",
        "restarts": "2",
        "steps": "9",
        "loss": "0.1235",
        "val_accuracy": "NaN",
        "model": str(results / "results/model.keras"),
        "checkpoints": str(results / "results/checkpoints"),
        "logs": str(results / "logs"),
    }
    assert err == ""


def test_a_path_is_relative_to_the_working_directory_and_never_broken(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    deep = results / "-".join(["deep"] * 20)
    outcome = dataclasses.replace(
        _outcome(results, names.ConditionType.FAILED), layout=folders.Folders(deep)
    )
    monkeypatch.chdir(results)
    run_summary.show(outcome)
    assert f"logs         {deep.name}/logs\n" in capsys.readouterr().out
    monkeypatch.chdir(results / "results")
    run_summary.show(outcome)
    assert f"logs         {deep}/logs\n" in capsys.readouterr().out


def test_a_reason_that_has_been_shown_is_not_repeated(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_summary.show(_outcome(results, names.ConditionType.FAILED), lambda message: message == "so")
    out, err = capsys.readouterr()
    assert out.startswith("Failed: digits\n")
    assert err == ""


def test_a_failure_shows_the_progress_of_its_run_and_no_model_of_an_earlier_one(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_summary.show(_outcome(results, names.ConditionType.FAILED))
    out, err = capsys.readouterr()
    shown = _shown(out)
    assert out.startswith("Failed: digits\n")
    assert err == "error: Why: so\n"
    assert (shown["steps"].strip(), shown["loss"].strip()) == ("7 of 9", "0.5")
    assert "model" not in shown
    assert "checkpoints" in shown


def test_a_split_model_is_shown_by_stage(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outcome = _outcome(results, names.ConditionType.SUCCEEDED)
    stage = job_status.StagePlacementStatus(
        stage=0,
        devices=("chief-0/GPU:0", "worker-0/GPU:0"),
        device_count=3,
        layers="conv to dense",
        layer_count=12,
        parameter_bytes=5 * 2**20 // 4,
    )
    mesh = job_status.MeshStatus(stage=2, data=3, microbatches=4)
    split = job_status.PlacementStatus(mesh=mesh, stages=(stage,))
    assert placement.headline(split) == "mesh data 3 x stage 2, 4 microbatches (1F1B)"
    cases = [(None, None, []), ("0.25", None, ["0.25", "100%", ""])]
    for busy, planned, cells in (*cases, ("0.25", "0.5", ["0.25", "100%", "100%"])):
        timing = {"busy_seconds": busy, "planned_seconds": planned}
        timed = split.model_copy(update={"stages": (stage.model_copy(update=timing),)})
        status = outcome.job.status.model_copy(update={"placement": timed})
        job = outcome.job.model_copy(update={"status": status})
        run_summary.show(dataclasses.replace(outcome, job=job))
        lines = capsys.readouterr().out.splitlines()
        [row] = (line for line in lines if "conv" in line)
        assert [cell.strip() for cell in row.strip("│").split("│")] == [
            "0",
            "chief-0/GPU:0, worker-0/GPU:0 and 1 more",
            "conv to dense (12)",
            "1.25 MiB",
            *cells,
        ]
        assert lines[-1].strip() == "and 1 more stages"


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (2**30, "1 GiB"), (3 * 2**50, "3072 TiB")]
)
def test_bytes_are_written_for_people(size: int, text: str) -> None:
    assert contract_progress.format_bytes(size) == text


def test_a_stopped_run_says_how_to_go_on(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_summary.show(_outcome(tmp_path, stopped_by=signal.SIGINT))
    out, err = capsys.readouterr()
    assert out.startswith("Stopped by SIGINT: digits\n")
    assert err == f"stopped; go on with --output {tmp_path}\n"


def _stage(number: int, busy: str) -> contract_progress.StagePlacement:
    return contract_progress.StagePlacement(
        stage=number,
        devices=(f"worker-{number}/CPU:0",),
        device_count=1,
        layers="dense",
        layer_count=1,
        parameter_bytes=8,
        busy_seconds=busy,
    )


def _pipeline() -> plan.Pipeline:
    return plan.Pipeline(
        placement=contract_progress.Placement(
            mesh=job_file.Mesh(stage=2), stages=(_stage(0, "0.02"), _stage(1, "0.01"))
        ),
        planned=None,
        step_seconds=0.05,
        spans=(
            *(_span(0, "forward", 0.0, 0.01), _span(1, "forward", 0.01, 0.015)),
            *(_span(1, "backward", 0.015, 0.02), _span(0, "backward", 0.02, 0.03)),
        ),
    )


def _span(stage: int, work: str, begin: float, end: float) -> plan.Span:
    return plan.Span(stage=stage, work=work, microbatch=0, begin=begin, end=end)


def test_the_pipeline_of_a_split_model_is_reported_and_drawn(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (results / "results" / outputs.PIPELINE).write_text(_pipeline().model_dump_json(by_alias=True))
    run_summary.show(_outcome(results, names.ConditionType.SUCCEEDED))
    shown = _shown(capsys.readouterr().out)
    assert shown["stages"].strip() == "wait 50% of the schedule · a step 50 ms"
    drawn = results / "results/pipeline.svg"
    assert shown["pipeline"].strip() == str(drawn)
    assert "Measured: a step of one replica" in drawn.read_text()
    assert "Planned: a step" not in drawn.read_text()


def test_without_matplotlib_the_summary_says_what_to_install(
    results: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # as if it were not installed
    (results / "results" / outputs.PIPELINE).write_text(_pipeline().model_dump_json(by_alias=True))
    run_summary.show(_outcome(results, names.ConditionType.SUCCEEDED))
    shown = _shown(capsys.readouterr().out)
    assert shown["pipeline"].strip() == "matplotlib is missing: install 'tfparallel[pictures]'"
    assert not (results / "results/pipeline.svg").exists()
