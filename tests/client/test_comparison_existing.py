"""Runs that are there already, compared by the logs that they have left."""

import json
import pathlib
import shlex
from collections.abc import Sequence

import pytest

from testing import invocation, pages, paths
from tfparallel.compare import existing, measure
from tfparallel_operator.api import load


def train_log(folder: pathlib.Path, losses: Sequence[float], pace: float) -> pathlib.Path:
    """The log of a run with two steps in each epoch, which ends with an evaluation."""
    lines = []
    for number, loss in enumerate(losses):
        at = 10.0 + 2 * number * pace
        metrics = {"loss": loss + 1, "input_wait": 0.1}
        lines += [
            record(at, "train", 2 * number + 1, number, {**metrics, "loss": 0.0}),
            record(at + pace, "train", 2 * number + 2, number + 1, metrics, examplesPerSecond=7.0),
            record(at + pace, "evaluation", 2 * number + 2, number + 1, {"loss": loss}),
            record(at + pace, "checkpoint", 2 * number + 2, number + 1, {}),
        ]
    (folder / "logs").mkdir(parents=True)
    (folder / "logs/train.jsonl").write_text("".join(f"{line}\n" for line in lines))
    return folder


def record(
    at: float, event: str, step: int, epoch: int, metrics: dict[str, float], **facts: float
) -> str:
    time = f"2026-01-01T00:00:{at:06.3f}+00:00"
    return json.dumps(
        {"time": time, "event": event, "step": step, "epoch": epoch, **facts, "metrics": metrics}
    )


def test_existing_runs_are_compared_by_their_logs(
    tmp_path: pathlib.Path, capsys: pytest.CaptureFixture[str]
) -> None:
    quick = train_log(tmp_path / "quick", [4, 2, 1], 1.0)
    slow = train_log(tmp_path / "slow", [3, 1, 1], 4.0)
    run = existing.read("quick", quick)
    assert [(mark.step, mark.seconds) for mark in run.marks] == [
        *((2, 1.0), (2, 1.0), (4, 3.0), (4, 3.0), (6, 5.0), (6, 5.0)),
    ]
    assert [sorted(mark.values) for mark in run.marks] == [["loss"], ["val_loss"]] * 3
    assert run.speed == 7.0
    existing.compare({"quick": quick, "slow": slow}, None)
    printed = capsys.readouterr().out
    assert "Until val_loss ≤ 1, s" in printed
    assert printed.endswith(
        "quick reaches val_loss ≤ 1 before slow (5 s against 12 s; whole runs 5 s against 20 s). It"
        " takes 1.5 times as many steps. One run of each does not show whether another one would do"
        " the same.\n"
    )
    existing.compare({"quick": quick, "slow": slow}, measure.Target("loss", 2.5))
    assert "only quick" not in capsys.readouterr().out


def test_the_page_shows_what_existing_runs_print(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    accuracies = {"small": [0.7, 0.88, 0.93], "large": [0.85, 0.91]}
    for name, values in accuracies.items():
        logs = train_log(tmp_path / "runs/digits" / name / "claims/digits/digits", values, 2.0)
        log = logs / "logs/train.jsonl"
        log.write_text(log.read_text().replace('{"loss"', '{"accuracy"'))
    monkeypatch.chdir(tmp_path)
    [console] = [
        block
        for block in pages.blocks(paths.PAGES / "benchmarks/compare.md", "console")
        if "--runs" in block
    ]
    [command] = pages.commands(console)
    program, *arguments = shlex.split(command.line)
    assert program == "tfparallel"
    result = invocation.invoke(arguments)
    assert result.exit_code == 0, result.stderr
    assert tuple(line.rstrip() for line in result.stdout.splitlines()) == command.shown


def test_runs_without_records_are_refused(tmp_path: pathlib.Path) -> None:
    with pytest.raises(load.SpecError, match=r"logs/train\.jsonl: not the log of a run"):
        existing.read("x", tmp_path)
    train_log(tmp_path / "no-step", [], 1.0)
    with pytest.raises(load.SpecError, match="x: the run has recorded no step"):
        existing.read("x", tmp_path / "no-step")
    folder = train_log(tmp_path / "good", [1], 1.0)
    with pytest.raises(load.SpecError, match="--target f1: the runs have loss, val_loss; give one"):
        existing.compare({"x": folder}, measure.Target("f1", 1.0))
