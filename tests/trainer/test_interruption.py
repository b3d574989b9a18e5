"""Runs that are cut off: killed, asked to end, taken over; and what resuming gives."""

import pathlib
import signal
import time

import pytest

from tests.trainer import launch, reference
from tests.trainer.test_equality import largest_difference
from tfparallel_trainer.contract import environment, exits

pytestmark = pytest.mark.trainer

STEPS = 60
TRAINER = {
    "module": "slow_stream.py",
    "steps": STEPS,
    "globalBatchSize": 20,
    "seed": 3,
    "checkpoint": {"claim": "c", "everySteps": 7, "keep": 2},
}


def start(folder: pathlib.Path, attempt: int, trainer: dict[str, object]) -> launch.Group:
    environments = launch.environments(
        folder, reference.MODELS, trainer, processes=2, more={environment.ATTEMPT: str(attempt)}
    )
    return launch.Group(folder / "logs", environments)


def test_killed_and_terminated_runs_resume_exactly(tmp_path: pathlib.Path) -> None:
    with reference.floatx():
        module = reference.load("slow_stream")
        expected, _ = reference.train(module, STEPS, 20, 3, module.examples)

    with start(tmp_path, 1, TRAINER) as group:
        group.wait_for_output(0, "  epoch 3  ")
        group.processes[1].send_signal(signal.SIGKILL)
        killed = time.monotonic()
        assert group.processes[0].wait(20) == exits.Exit.PEER_LOST, group.result(0)
        assert time.monotonic() - killed < 10
        assert "A peer was lost" in group.result(0).errors

    with start(tmp_path, 2, TRAINER) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].send_signal(signal.SIGTERM)
        asked = time.monotonic()
        ended = group.wait(20)
        assert [one.code for one in ended] == [exits.Exit.PREEMPTED] * 2, ended
        assert time.monotonic() - asked < 10
        assert "resuming after step" in ended[0].output
        assert "which is saved" in ended[0].errors
        stopped = int(ended[0].errors.rsplit("after step ", 1)[1].split(",")[0])

    with start(tmp_path, 3, TRAINER) as group:
        ended = group.wait()
        assert [one.code for one in ended] == [0, 0], ended
        assert f"resuming after step {stopped} " in ended[0].output
    difference = largest_difference(tmp_path, expected)
    print(f"killed, terminated and resumed: largest difference of a weight {difference:.1e}")
    assert difference <= 1e-10
    assert launch.summary(tmp_path).steps == STEPS
    assert launch.summary(tmp_path).attempt == 3
    kept = sorted(path.name for path in (tmp_path / "output" / "checkpoints").glob("step-*"))
    assert kept == ["step-0000000056", "step-0000000060"]

    with start(tmp_path, 4, TRAINER) as group:
        began = time.monotonic()
        ended = group.wait(10)
        assert [one.code for one in ended] == [0, 0], ended
        assert time.monotonic() - began < 5
        assert "already finished" in ended[0].output


def test_frozen_peer_is_lost(tmp_path: pathlib.Path) -> None:
    with start(tmp_path, 1, {**TRAINER, "steps": 2000}) as group:
        group.wait_for_output(0, "] step ")
        group.processes[0].send_signal(signal.SIGSTOP)
        stopped = time.monotonic()
        assert group.processes[1].wait(40) == exits.Exit.PEER_LOST, group.result(1)
        print(f"a frozen chief was noticed after {time.monotonic() - stopped:.1f} s")


def test_missing_peer_is_named(tmp_path: pathlib.Path) -> None:
    environments = launch.environments(
        tmp_path, reference.MODELS, {**TRAINER, "startTimeoutSeconds": 6}, processes=2
    )
    with launch.Group(tmp_path / "logs", environments[:1]) as group:
        (ended,) = group.wait(60)
    assert ended.code == exits.Exit.START_TIMEOUT, ended
    assert "waited 6 s (startTimeoutSeconds) for worker-0 (127.0.0.1:" in ended.errors


def test_terminated_while_waiting_for_peers(tmp_path: pathlib.Path) -> None:
    environments = launch.environments(tmp_path, reference.MODELS, TRAINER, processes=2)
    with launch.Group(tmp_path / "logs", environments[1:]) as group:
        group.wait_for_output(0, "waiting for chief-0", 60)
        group.processes[0].send_signal(signal.SIGTERM)
        (ended,) = group.wait(10)
    assert ended.code == exits.Exit.PREEMPTED, ended


def test_replicas_with_different_modules_are_refused(tmp_path: pathlib.Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (reference.MODELS / "slow_stream.py").read_text()
    (other / "slow_stream.py").write_text(text + "\n# changed\n")
    environments = launch.environments(tmp_path, reference.MODELS, TRAINER, processes=2)
    environments[1][environment.SOURCE_DIR] = str(other)
    with launch.Group(tmp_path / "logs", environments) as group:
        ended = group.wait(60)
    assert [one.code for one in ended] == [exits.Exit.BAD_CONFIGURATION] * 2, ended
    assert "differ in the content of slow_stream.py" in ended[0].errors
