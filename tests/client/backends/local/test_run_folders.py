"""The verbs that take the folder of a local run in place of a job of a cluster."""

import asyncio
import json
import os
import pathlib
import shutil
from typing import Any

import pytest

from testing import invocation, report_runs
from testing.operator import local_jobs as jobs
from tfparallel import run_summary
from tfparallel.backends.local import folders, local_run
from tfparallel.results import folder
from tfparallel_operator.api import names
from tfparallel_trainer.contract import outputs

pytestmark = pytest.mark.usefixtures("processes")

MOUNT = {"volumeMounts": [{"name": "results", "mountPath": "/results"}]}
VOLUME = {"volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": "kept"}}]}


def call(*arguments: str) -> invocation.Result:
    return invocation.invoke(arguments)


def finish(root: pathlib.Path, document: Any, output: str = "out") -> local_run.RunResult:
    return asyncio.run(jobs.finish(root, document, output=output))[0]


def worker(command: str) -> dict[str, Any]:
    template = jobs.template(jobs.shell(command), pod_spec=VOLUME, **MOUNT)
    return jobs.job({"Worker": {"replicas": 2, "restartPolicy": "Never", "template": template}})


def test_a_failed_run_is_explained(tmp_path: pathlib.Path) -> None:
    finish(tmp_path, worker(f"echo my last words; {jobs.meet(2)}; exit 3"), output="runs/job/1")
    path = str(tmp_path / "runs/job")
    shown = " ".join(call("why", path).stdout.split())
    assert "job failed" in shown
    assert "exited with code 3" in shown
    assert "my last words" in shown
    assert "Then run the job again." in shown
    assert "tfparallel delete" not in shown
    facts = json.loads(call("why", path, "-o", "json").stdout)
    assert (facts["job"], facts["namespace"], facts["kind"]) == ("job", "default", "Failed")
    assert "my last words\n" in call("logs", path).stdout
    assert call("logs", path, "worker-1").stdout == "my last words\n"
    assert sorted(call("logs", path, "--all").stdout.splitlines()) == [
        "[worker-0] my last words",
        "[worker-1] my last words",
    ]
    unknown = call("logs", path, "worker-7")
    assert (unknown.exit_code, "did you mean 'worker-1'?" in unknown.stderr) == (2, True)
    assert "ReplicaFailed" in call("events", path).stdout


def test_the_status_of_a_run_is_shown_as_that_of_a_job(tmp_path: pathlib.Path) -> None:
    finish(tmp_path, worker(f"{jobs.meet(2)}; exit 3"), output="runs/job/1")
    path = str(tmp_path / "runs/job")
    shown = call("status", path)
    assert (shown.exit_code, shown.stderr) == (0, ""), shown.output
    lines = shown.stdout.splitlines()
    assert lines[0] == "job: Failed"
    assert any("exited with code 3" in line for line in lines)
    assert any(line.split()[:2] == ["Worker", "2"] for line in lines), shown.stdout
    assert any("ReplicaFailed" in line for line in lines)
    assert call("status", path, "-w").stdout.split()[:2] == ["job", "Failed"]
    written = json.loads(call("status", path, "-o", "json").stdout)
    assert (written["kind"], written["status"]["state"]) == ("TFParallelJob", "Failed")


def test_a_report_of_a_script_has_what_fit_wrote_into_its_claim(tmp_path: pathlib.Path) -> None:
    finish(tmp_path, worker(f"{jobs.meet(2)}; mkdir -p /results/a/b /results/a/c"))
    log = tmp_path / "out/claims/kept/a/b" / outputs.TRAIN_LOG
    log.parent.mkdir(parents=True)
    log.write_text("\n".join(report_runs.attempt(0, 0, 3)))
    for path, has_curve in (("/results", True), ("/results/a/b", True), ("/results/a/c", False)):
        page = tmp_path / "page.html"
        done = call("report", f"{tmp_path}/out", "--path", path, "-o", str(page))
        assert done.stdout == f"{page}\n", done.output
        text = page.read_text()
        assert ("loss by step" in text, "left no records" in text) == (has_curve, not has_curve)
    done = call("report", f"{tmp_path}/out", "--path", "/elsewhere")
    assert (done.exit_code, "mount claim 'kept' at /results" in done.stderr) == (1, True)


def test_a_run_whose_process_is_gone_says_how_to_go_on(tmp_path: pathlib.Path) -> None:
    finish(tmp_path, worker("exit 0"))
    layout = folders.Folders(tmp_path / "out")
    status = json.loads(layout.status.read_text())
    running = [condition for condition in status["conditions"] if condition["type"] == "Running"]
    layout.status.write_text(json.dumps({**status, "state": "Running", "conditions": running}))
    shown = " ".join(call("why", f"{tmp_path}/out").stdout.split())
    assert "the process that ran the job has ended before the job" in shown
    assert f"`tfparallel run JOB.yaml --output {tmp_path}/out`" in shown


def test_the_models_of_a_script_are_brought_and_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save = f"{jobs.meet(2)}; mkdir -p /results/best; echo 1 > /results/best/model.keras"
    outcome = finish(tmp_path, worker(save))
    assert outcome.job.status.state is names.State.SUCCEEDED
    run_summary.show(outcome)
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["model", "out/claims/kept/best/model.keras"] in rows
    (tmp_path / "out/claims/kept/notes.txt").write_text("mine")
    done = call("get", "model", "./out", "--to", "got")
    assert (done.exit_code, done.stdout) == (0, "got/best/model.keras\n"), done.output
    done = call("get", "model", "./out", "--path", "/results/best", "--to", "best")
    assert done.stdout == "best/model.keras\n"
    done = call("get", "model", "./out", "--all", "--to", "all")
    assert done.stdout == "all: 2 files, 0.0 MiB\n"
    log = tmp_path / "out/claims/kept" / outputs.TRAIN_LOG  # by fit(output_dir="/results")
    log.parent.mkdir()
    log.touch()
    assert folder.find(tmp_path / "out").path == tmp_path / "out/claims/kept"
    done = call("get", "model", "./out", "--path", "/elsewhere")
    assert (done.exit_code, "mount claim 'kept' at /results" in done.stderr) == (1, True)


def test_a_model_of_an_earlier_run_in_the_folder_is_not_named(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    old = tmp_path / "out/claims/kept/model.keras"
    old.parent.mkdir(parents=True)
    old.touch()
    os.utime(old, (0, 0))
    outcome = finish(tmp_path, worker(f"{jobs.meet(2)}"))
    run_summary.show(outcome)
    assert "model.keras" not in capsys.readouterr().out


@pytest.mark.parametrize("verb", ["why", "logs", "events", "status"])
def test_a_folder_without_a_run_says_what_is_missing(verb: str, tmp_path: pathlib.Path) -> None:
    done = call(verb, f"{tmp_path}/")
    assert done.exit_code == 2
    assert "no run is in this folder: status.json is missing. Give the folder" in done.stderr
    shutil.rmtree(tmp_path)
    done = call(verb, f"{tmp_path}/")
    assert (done.exit_code, "no such folder" in done.stderr) == (2, True)
