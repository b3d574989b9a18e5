"""`tfparallel rehearse`, with real processes."""

import json
import pathlib
import shlex
import shutil
from typing import Any

import pytest

from testing import invocation, pages, paths
from testing.operator import local_jobs as jobs
from tfparallel_trainer.contract import exits

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.timeout(1800)]

_MODEL = paths.ROOT / "testing/trainer/models/slow_stream.py"


def _write_job(folder: pathlib.Path, **trainer: Any) -> None:
    shutil.copy(_MODEL, folder / "model.py")
    fields = {
        "source": {"configMap": {"name": "code"}},
        "steps": 40,
        "globalBatchSize": 18,
        "verify": "Off",
        "checkpoint": {"claim": "c", "everySteps": 7},
        **trainer,
    }
    jobs.write(folder, jobs.job({"Worker": {"replicas": 2}}, trainer=fields))


def _rehearse(folder: pathlib.Path, *arguments: str) -> Any:
    done = invocation.run(
        *("rehearse", "job.yaml", "-o", "json", "--output", "out"), *arguments, folder=folder
    )
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document == json.loads((folder / "out/rehearsal.json").read_text())
    assert document["disturbed"]["succeeded"]
    assert document["weights"]["steps"] == [40, 40]
    assert document["weights"]["isBitEqual"], document["weights"]
    return document


def _check_phases(recovery: Any, interval: int = 7) -> None:
    """Check the moments of a recovery, and that the job saved after so many steps.

    It also saves at the end of an epoch.
    """
    phases = [recovery[phase] for phase in ("noticed", "restarted", "resumed", "advanced")]
    assert phases == sorted(phases)
    assert phases[0] > 0
    assert 0 <= recovery["lostSteps"] <= interval


def test_a_killed_worker_and_a_full_disk_cost_steps_and_no_other_result(
    tmp_path: pathlib.Path,
) -> None:
    _write_job(tmp_path)
    document = _rehearse(tmp_path, "--kill", "worker-1@17", "--disk-full", "30", "--mtbf", "100")
    killed, full = document["recoveries"]
    assert killed["fault"] == {"kind": "kill", "replicas": ["worker-1"], "step": 17}
    assert 17 <= killed["step"] < 40
    assert full["fault"] == {"kind": "disk-full", "replicas": [], "step": 30}
    for recovery in (killed, full):
        _check_phases(recovery)
    shown = [entry["text"] for entry in document["timeline"]]
    assert "worker-1 ends with exit code 137" in shown
    assert f"worker-0 ends with exit code {exits.Exit.STORAGE_FAILED.value}" in shown
    prediction = document["prediction"]
    assert prediction["hoursBetweenFailures"] == 50
    assert 0 < prediction["goodput"] <= prediction["bestGoodput"] < 1
    assert prediction["costs"]["restart"] == (killed["resumed"] + full["resumed"]) / 2


@pytest.mark.long
def test_a_frozen_worker_is_noticed_by_the_others(tmp_path: pathlib.Path) -> None:
    _write_job(tmp_path)
    document = _rehearse(tmp_path, "--freeze", "worker-1@17")
    [recovery] = document["recoveries"]
    _check_phases(recovery)
    assert document["prediction"] is None
    shown = [entry["text"] for entry in document["timeline"]]
    assert f"worker-0 ends with exit code {exits.Exit.PEER_LOST.value}" in shown
    assert "worker-1 ends with exit code 137" in shown


def _run_command_of_page(number: int, folder: pathlib.Path) -> tuple[str, Any]:
    """Run a command of the page with few epochs; return what it prints, and its document."""
    shutil.copytree(paths.EXAMPLES / "digits", folder / "examples/digits")
    console = pages.blocks(paths.PAGES / "how-to/rehearse.md", "console")[number]
    [command] = pages.commands(console)
    program, *arguments = shlex.split(command.line)
    assert program == "tfparallel"
    done = invocation.run(*arguments, "--epochs", "3", folder=folder)
    assert done.returncode == 0, done.stderr
    [file] = folder.glob("runs/digits/*/rehearsal.json")
    assert done.stdout.splitlines()[-1] == str(file.relative_to(folder))
    return done.stdout, json.loads(file.read_text())


def test_the_first_command_of_the_page_shows_what_a_fault_costs(tmp_path: pathlib.Path) -> None:
    shown, _ = _run_command_of_page(0, tmp_path)
    assert "kill worker-0@30, after step " in shown
    assert "The best interval is " in shown


def test_the_second_command_of_the_page_cuts_a_worker_off(tmp_path: pathlib.Path) -> None:
    _, document = _run_command_of_page(1, tmp_path)
    [recovery] = document["recoveries"]
    assert recovery["fault"] == {"kind": "cut", "replicas": ["chief-0", "worker-0"], "step": 30}
    _check_phases(recovery, interval=23)  # one epoch
    assert document["weights"]["isBitEqual"], document["weights"]
    shown = [entry["text"] for entry in document["timeline"]]
    # Only missed heartbeats show a cut: no process has died.
    assert f"chief-0 ends with exit code {exits.Exit.PEER_LOST.value}" in shown


def test_what_cannot_be_rehearsed_is_refused(tmp_path: pathlib.Path) -> None:
    _write_job(tmp_path)
    file = str(tmp_path / "job.yaml")
    (tmp_path / "used").mkdir()
    (tmp_path / "used/file").touch()
    bucket = "--set=spec.trainer.checkpoint={uri: 's3://b/p'}"
    refused = {
        (): "no fault: give --kill, --freeze, --cut, --disk-full or --slow",
        ("--kill", "worker-1"): "--kill worker-1: write REPLICA@STEP",
        ("--kill", "chief@3"): "--kill chief-0@3: the job has no replica 'chief-0': it has worker",
        ("--cut", "worker-0:ps@3"): "--cut worker-0:ps-0@3: the job has no replica 'ps-0'",
        ("--kill", "worker-1@40"): "--kill worker-1@40: the job ends with step 40",
        ("--kill", "worker-1@4", "--nodes", "3"): "--nodes: goes with --mtbf",
        ("--slow", "worker-1x4", "--mtbf", "3"): "--mtbf: needs a fault after which the job",
        ("--kill", "worker-1@4", bucket): "spec.trainer.checkpoint.uri: both runs would share",
        ("--kill", "worker-1@4", "--output", str(tmp_path / "used")): "holds files already",
    }
    for arguments, sentence in refused.items():
        result = invocation.invoke(["rehearse", file, *arguments])
        assert result.exit_code == 2, (arguments, result.output)
        assert sentence in " ".join(result.stderr.split()), (arguments, result.stderr)
