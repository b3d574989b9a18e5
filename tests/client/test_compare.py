"""`tfparallel compare`, with real processes."""

import json
import os
import pathlib
import signal
import subprocess
import sys
from typing import Any

import click.testing
import pytest

from testing import waiting
from testing.operator import local_jobs as jobs
from tfparallel.cli import app

pytestmark = pytest.mark.usefixtures("processes")


_ROOT = pathlib.Path(__file__).parents[2]
_DIGITS = str(_ROOT / "examples/digits/job.yaml")
_COMMAND = (sys.executable, "-m", "tfparallel", "compare", _DIGITS)
_SECONDS = 900


def _cells(made: Any, name: str) -> list[list[float]]:
    rows = [row for group in made["groups"] for row in group["rows"] if row["name"] == name]
    return [cell["values"] for cell in rows[0]["cells"]]


def _told(folder: pathlib.Path, variant: str, metric: str) -> list[Any]:
    """What the runs of a variant themselves came to, seed by seed."""
    files = sorted((folder / "out").glob(f"{variant}-seed[0-9]/**/summary.json"))
    summaries = [json.loads(file.read_text()) for file in files]
    return [pytest.approx(float(one["metrics"][metric]), rel=1e-4) for one in summaries]


def _compare(folder: pathlib.Path, *options: str) -> tuple[Any, "subprocess.CompletedProcess[str]"]:
    """Compare in a folder; gives the report and what was printed."""
    done = subprocess.run(
        (*_COMMAND, "--output", "out", *options),
        cwd=folder,
        check=False,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
    )
    assert done.returncode == 0, done.stderr
    for file in ("report.md", "report.json", "loss.svg", "speed.svg", "staleness.svg"):
        assert (folder / "out" / file).stat().st_size > 1000
    return json.loads((folder / "out/report.json").read_text()), done


@pytest.mark.timeout(_SECONDS)
def test_sync_and_async(tmp_path: pathlib.Path) -> None:
    report, done = _compare(tmp_path, "--seeds", "1", "--epochs", "2", "--target", "loss=5")
    assert "run 2 of 2: async, seed 0" in done.stderr
    assert report["variants"] == ["sync", "async"]
    assert _cells(report, "updates") == [[2 * 23]] * 2
    assert [curve["examples"] for curve in report["curves"]] == [[1437, 2874]] * 2
    assert _cells(report, "staleness, mean") == [[], _told(tmp_path, "async", "staleness_mean")]
    for mode, found in zip(report["variants"], _cells(report, "final val_loss"), strict=True):
        assert found == _told(tmp_path, mode, "val_loss")
    assert _cells(report, "processes") == [[2], [4]]
    assert all(map(len, _cells(report, "until loss ≤ 5")))


@pytest.mark.long
@pytest.mark.timeout(_SECONDS)
def test_sync_and_async_and_both_with_a_slow_worker(tmp_path: pathlib.Path) -> None:
    options = ("--seeds", "2", "--slow-worker", "4", "--epochs", "3")
    report, done = _compare(tmp_path, *options, "--target", "val_accuracy=0.3")
    assert "run 8 of 8: async, slow worker, seed 1" in done.stderr
    assert "async, slow worker" in done.stdout
    assert report["variants"] == ["sync", "async", "sync, slow worker", "async, slow worker"]
    assert _cells(report, "updates") == [[3 * 23] * 2] * 4
    assert [curve["examples"] for curve in report["curves"]] == [[1437, 2874, 4311]] * 4
    plain, slow = (
        _told(tmp_path, variant, "staleness_mean") for variant in ("async", "async-slow")
    )
    assert _cells(report, "staleness, mean") == [[], plain, [], slow]
    speeds = _cells(report, "speed")
    kept = [
        [pytest.approx(s / q) for s, q in zip(slow_mode, quick, strict=True)]
        for quick, slow_mode in zip(speeds[:2], speeds[2:], strict=True)
    ]
    # Which is more is for docs/compare.md to say: other work on the machine would decide it here.
    assert _cells(report, "speed kept with a slow worker") == [[], [], *kept]
    assert _cells(report, "processes") == [[2, 2], [4, 4]] * 2
    assert all(map(len, _cells(report, "until val_accuracy ≥ 0.3")))


def test_an_interrupted_comparison_leaves_no_process(tmp_path: pathlib.Path) -> None:
    mark = jobs.new_mark()
    with subprocess.Popen(
        (*_COMMAND, "--slow-worker", "3", "--equal-batch", "worker", "--output", "out"),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, jobs.MARK: mark},
    ) as running:
        try:
            assert running.stdout is not None
            assert b"run 1 of 12: sync, seed 0: begins" in running.stdout.readline()
            waiting.until(
                lambda: jobs.processes(mark),
                "two keepers and what they keep",
                when=lambda found: len(found) >= 4,
            )
            running.send_signal(signal.SIGINT)
            running.communicate(timeout=60)
            assert running.returncode == 130
            assert jobs.processes(mark) == []
        finally:
            running.kill()


def test_a_run_that_fails_fails_the_comparison(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("")
    document = jobs.job({"Worker": {"template": None}}, trainer={"epochs": 1})
    file = jobs.write(tmp_path, document)
    template = jobs.template(jobs.shell("exit 4"))
    changed = f"spec.tfReplicaSpecs.Worker.template={json.dumps(template)}"
    result = click.testing.CliRunner().invoke(
        app.tfparallel, ["compare", str(file), "--output", str(tmp_path / "out"), "--set", changed]
    )
    assert result.exit_code == 1
    assert "error: sync, seed 0: " in result.stderr
    assert "exited with code 4" in result.stderr
    assert f"its logs are in {tmp_path / 'out' / 'sync-seed0' / 'logs'}" in result.stderr


def _refused(*arguments: str) -> str:
    result = click.testing.CliRunner().invoke(app.tfparallel, ["compare", *arguments])
    assert result.exit_code == 2
    return result.stderr


def test_what_cannot_be_compared_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "file").touch()
    assert _refused(_DIGITS, "--output", str(tmp_path)) == (
        f"error: --output {tmp_path}: holds files already; give a new folder\n"
    )
    assert "File exists; give a folder" in _refused(_DIGITS, "--output", str(tmp_path / "file"))
    assert _refused(_DIGITS, "--target", "accuracy") == (
        "error: --target accuracy: write METRIC=VALUE, such as val_accuracy=0.95\n"
    )
    script = jobs.write(tmp_path, jobs.job({"Worker": ["true"]}))
    assert "spec.trainer: missing; tfparallel compare" in _refused(str(script))
    assert "is not in the range x>1" in _refused(_DIGITS, "--slow-worker", "1")
