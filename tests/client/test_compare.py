"""`tfparallel compare`, with real processes."""

import contextlib
import json
import os
import pathlib
import signal
import subprocess
from typing import Any

import pytest

from testing import invocation, waiting
from testing.operator import local_jobs as jobs

pytestmark = pytest.mark.usefixtures("processes")


_ROOT = pathlib.Path(__file__).parents[2]
_DIGITS = str(_ROOT / "examples/digits/job.yaml")
_COMMAND = (*invocation.PROGRAM, "compare")
_SECONDS = 600

_MODEL = """
import keras
import numpy


def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])


def compile_model(model):
    model.compile(optimizer="sgd", loss="mse", metrics=["mean_absolute_error"])


def training_data(context):
    x = numpy.random.default_rng(context.seed).normal(size=(70, 3))
    return x, x[:, :2]


evaluation_data = training_data
"""


def _cells(figures: Any, name: str) -> list[list[float]]:
    rows = [row for group in figures["groups"] for row in group["rows"] if row["name"] == name]
    return [cell["values"] for cell in rows[0]["cells"]]


def _logged(folder: pathlib.Path, variant: str, metric: str) -> list[Any]:
    """What the runs of a variant themselves came to, seed by seed."""
    files = sorted((folder / "out").glob(f"{variant}-seed[0-9]/**/summary.json"))
    summaries = [json.loads(file.read_text()) for file in files]
    return [pytest.approx(float(summary["metrics"][metric]), rel=1e-4) for summary in summaries]


_Comparison = tuple[pathlib.Path, Any, invocation.Ended]


def _compare(folder: pathlib.Path, *slow: str) -> _Comparison:
    """Compare a small job: its folder, the report and what was printed.

    One worker is enough: what it records is checked here, and what several record in other tests.
    """
    (folder / "model.py").write_text(_MODEL)
    trainer = {"epochs": 2, "globalBatchSize": 30}
    jobs.write(folder, jobs.job({"Worker": {"replicas": 2}}, trainer=trainer))
    options = ("--workers", "1", "--seeds", "1", "--target", "loss=5", *slow)
    done = invocation.execute(
        *_COMMAND, "job.yaml", "--output", "out", *options, folder=folder, timeout=_SECONDS
    )
    assert done.returncode == 0, done.stderr
    for file in ("report.md", "report.json", "loss.svg", "speed.svg", "staleness.svg"):
        assert (folder / "out" / file).stat().st_size > 1000
    return folder, json.loads((folder / "out/report.json").read_text()), done


def _check(comparison: _Comparison, *names: str) -> None:
    """See that the report has what the runs of the variants with these names came to."""
    folder, report, _ = comparison
    assert _cells(report, "updates") == [[2 * 3]] * len(names)
    assert [curve["examples"] for curve in report["curves"]] == [[70, 140]] * len(names)
    assert _cells(report, "processes") == [[1], [3]] * (len(names) // 2)
    assert all(map(len, _cells(report, "until loss ≤ 5")))
    for name, values in zip(names, _cells(report, "final val_loss"), strict=True):
        assert values == _logged(folder, name, "val_loss")
    stale = [
        _logged(folder, name, "staleness_mean") if name.startswith("async") else []
        for name in names
    ]
    assert _cells(report, "staleness, mean") == stale


@pytest.fixture(scope="module")
def comparison(tmp_path_factory: pytest.TempPathFactory) -> _Comparison:
    return _compare(tmp_path_factory.mktemp("comparison"))


@pytest.mark.timeout(_SECONDS)
def test_sync_and_async_are_compared(comparison: _Comparison) -> None:
    _, report, done = comparison
    assert report["variants"] == ["sync", "async"]
    assert "run 2 of 2: async, seed 0" in done.stderr
    _check(comparison, "sync", "async")


@pytest.fixture(scope="module")
def slow_comparison(tmp_path_factory: pytest.TempPathFactory) -> _Comparison:
    """A worker that is slow from its start on: a larger factor finds no more and costs minutes."""
    return _compare(tmp_path_factory.mktemp("slow-comparison"), "--slow-worker", "1.5")


@pytest.mark.long
@pytest.mark.timeout(_SECONDS)
def test_sync_and_async_and_both_with_a_slow_worker(slow_comparison: _Comparison) -> None:
    _, report, done = slow_comparison
    variants = ["sync", "async", "sync, worker 1.5x slower", "async, worker 1.5x slower"]
    assert report["variants"] == variants
    assert "run 4 of 4: async, worker 1.5x slower, seed 0" in done.stderr
    _check(slow_comparison, "sync", "async", "sync-slow", "async-slow")


@pytest.mark.long
@pytest.mark.timeout(_SECONDS)
def test_a_slow_worker_is_compared_with_an_equal_one(slow_comparison: _Comparison) -> None:
    _, report, done = slow_comparison
    speeds = _cells(report, "speed")
    kept = [
        [pytest.approx(s / q) for s, q in zip(slow_mode, quick, strict=True)]
        for quick, slow_mode in zip(speeds[:2], speeds[2:], strict=True)
    ]
    # Other work on the machine would decide which is more: docs/benchmarks/compare.md says it.
    assert _cells(report, "speed kept with a slow worker") == [[], [], *kept]
    equal, slow = report["verdicts"]
    assert equal.startswith("With equal workers, ")
    assert slow.startswith("With a worker 1.5 times slower, ")
    assert done.stdout.splitlines()[-2:] == [equal, slow]


@pytest.mark.timeout(_SECONDS)
def test_runs_that_exist_are_compared(comparison: _Comparison) -> None:
    folder, _, _ = comparison
    runs = [f"out/{mode}-seed0" for mode in ("sync", "async")]
    with contextlib.chdir(folder):
        result = invocation.invoke(["compare", "--runs", *runs, "--target", "loss=5"])
    assert result.exit_code == 0, result.stderr
    assert all(name in result.stdout for name in runs)
    assert "Until loss ≤ 5, s" in result.stdout
    assert "loss ≤ 5" in result.stdout.splitlines()[-1]


def test_an_interrupted_comparison_leaves_no_process(tmp_path: pathlib.Path) -> None:
    mark = jobs.new_mark()
    with subprocess.Popen(
        (*_COMMAND, _DIGITS, "--slow-worker", "3", "--equal-batch", "worker", "--output", "out"),
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
                "two supervisors and their commands",
                when=lambda lines: len(lines) >= 4,
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
    result = invocation.invoke(
        ["compare", str(file), "--output", str(tmp_path / "out"), "--set", changed]
    )
    assert result.exit_code == 1
    assert "error: sync, seed 0: " in result.stderr
    assert "exited with code 4" in result.stderr
    assert f"its logs are in {tmp_path / 'out' / 'sync-seed0' / 'logs'}" in result.stderr


def _refused(*arguments: str) -> str:
    result = invocation.invoke(["compare", *arguments])
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
    assert "give --runs to compare folders" in _refused(_DIGITS, _DIGITS)


def test_runs_that_cannot_be_compared_are_refused(tmp_path: pathlib.Path) -> None:
    folder = str(tmp_path)
    assert _refused("--runs", folder) == "error: --runs: received 1 folder; give two or more\n"
    assert _refused("--runs", folder, "x", "--seeds", "2") == (
        "error: --seeds makes new runs; remove it, or --runs\n"
    )
    assert _refused("--runs", folder, "x", "--set", "a=b").startswith("error: --set makes new")
    result = invocation.invoke(["compare", "--runs", folder, "x"])
    assert result.exit_code == 1
    assert f"{folder}: no results of the trainer" in result.stderr
