"""Runs that are cut off: killed, asked to end, taken over; and what resuming gives."""

import pathlib
import signal
from collections.abc import Mapping
from types import MappingProxyType

import pytest

from testing.trainer import launch, reference, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits

pytestmark = pytest.mark.usefixtures("runs")

TRAINER: dict[str, object] = {
    "module": "slow_stream.py",
    "steps": launch.ENDLESS,
    "globalBatchSize": 20,
    "seed": 3,
    "checkpoint": {"claim": "c", "everySteps": 7, "keep": 2},
}


def start(
    folder: pathlib.Path,
    attempt: int,
    trainer: dict[str, object],
    more: Mapping[str, str] = MappingProxyType({}),
    *,
    new: bool = False,
) -> launch.Group:
    more = {**more, environment.ATTEMPT: str(attempt)}
    environments = launch.environments(folder, reference.MODELS, trainer, processes=2, more=more)
    return trainings.Runs(folder).group(environments, new=new)


def test_killed_and_terminated_runs_resume_exactly(tmp_path: pathlib.Path) -> None:
    with start(tmp_path, 1, TRAINER) as group:
        group.wait_for_output(0, "  epoch 4  ")
        group.processes[1].send_signal(signal.SIGKILL)
        assert group.processes[0].wait(150) == exits.Exit.PEER_LOST, group.result(0)
        assert "A peer was lost" in group.result(0).errors

    with start(tmp_path, 2, TRAINER, new=True) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].send_signal(signal.SIGTERM)
        ended = group.wait()
        assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
        assert "resuming after step" in ended[0].output
        assert "which is saved" in ended[0].errors
        stopped = int(ended[0].errors.rsplit("after step ", 1)[1].split(",")[0])

    steps = stopped + 20
    trainer = {**TRAINER, "steps": steps}
    with start(tmp_path, 3, trainer) as group:
        with reference.floatx():
            module = reference.load("slow_stream")
            expected, _ = reference.train(module, steps, 20, 3, module.examples)
        ended = group.wait()
        assert [process.code for process in ended] == [0, 0], ended
        assert f"resuming after step {stopped} " in ended[0].output
    difference = weights.run_difference(tmp_path, expected)
    print(f"killed, terminated and resumed: largest difference of a weight {difference:.1e}")
    assert difference <= 1e-10
    assert launch.summary(tmp_path).steps == steps
    assert launch.summary(tmp_path).attempt == 3
    kept = sorted(path.name for path in (tmp_path / "output" / "checkpoints").glob("step-*"))
    # One is saved at every seventh step, and at the end of an epoch of five.
    before = max(step for step in range(steps) if step % 7 == 0 or step % 5 == 0)
    assert kept == [f"step-{step:010}" for step in (before, steps)]

    # Python reports every module that it imports.
    with start(tmp_path, 4, trainer, {"PYTHONPROFILEIMPORTTIME": "1"}, new=True) as group:
        ended = group.wait()
    assert [process.code for process in ended] == [0, 0], ended
    for process in ended:
        assert "already finished" in process.output
        assert "tfparallel_trainer.loop.preflight" in process.errors
        assert "tensorflow" not in process.errors


def test_frozen_peer_is_lost(tmp_path: pathlib.Path) -> None:
    with start(tmp_path, 1, TRAINER) as group:
        group.wait_for_output(0, "] step ")
        group.processes[0].send_signal(signal.SIGSTOP)
        assert group.processes[1].wait(150) == exits.Exit.PEER_LOST, group.result(1)


def test_missing_peer_is_named(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    environments = launch.environments(
        tmp_path, reference.MODELS, {**TRAINER, "startTimeoutSeconds": 6}, processes=2
    )
    with runs.group(environments[:1]) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.START_TIMEOUT, ended
    assert "waited 6 s (startTimeoutSeconds) for worker-0 (127.0.0.1:" in ended.errors


def test_terminated_while_waiting_for_peers(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    environments = launch.environments(tmp_path, reference.MODELS, TRAINER, processes=2)
    with runs.group(environments[1:]) as group:
        group.wait_for_output(0, "waiting for chief-0")
        group.processes[0].send_signal(signal.SIGTERM)
        (ended,) = group.wait()
    assert ended.code == exits.Exit.PREEMPTED, ended


def test_replicas_with_different_modules_are_refused(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    text = (reference.MODELS / "slow_stream.py").read_text()
    (other / "slow_stream.py").write_text(text + "\n# changed\n")
    environments = launch.environments(tmp_path, reference.MODELS, TRAINER, processes=2)
    environments[1][environment.SOURCE_DIR] = str(other)
    with runs.group(environments) as group:
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.BAD_CONFIGURATION] * 2, ended
    assert "differ in the content of slow_stream.py" in ended[0].errors


SLOW_TO_LEAVE = """
import json, os, time
from tfparallel_trainer import errors

raised = errors.PreemptedError.__init__

def delay(error, *arguments):
    time.sleep(4)  # longer than it takes to notice that a peer no longer listens
    raised(error, *arguments)

if json.loads(os.environ["TF_CONFIG"])["task"]["type"] == "chief":
    errors.PreemptedError.__init__ = delay
"""


def test_a_process_that_is_slow_to_leave_ends_like_its_peer(tmp_path: pathlib.Path) -> None:
    """On a busy machine seconds may pass between the last agreement and the end of a process."""
    text = (reference.MODELS / "slow_stream.py").read_text(encoding="utf-8")
    (tmp_path / "model.py").write_text(text + SLOW_TO_LEAVE, encoding="utf-8")
    trainer = {**TRAINER, "module": "model.py"}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2)
    with trainings.Runs(tmp_path).group(environments) as group:
        group.wait_for_output(0, "] step ")
        group.processes[1].terminate()
        ended = group.wait()
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 2, ended
