"""The campaign of random kills sees what it looks for."""

import asyncio
import contextlib
import pathlib
import subprocess
import sys
from collections.abc import Iterator, Mapping

import pytest

from testing import waiting
from testing.random_kills import campaign_run, kills
from tfparallel_operator.api import job_status, names

TRAINER = (sys.executable, "-c", "import time; time.sleep(60)", "tfparallel_trainer")


class Processes:
    """Stands for the local cluster: it has the trainers that the test starts."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        self._stack = stack
        self.trainers: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, replica: str, command: tuple[str, ...] = TRAINER) -> None:
        trainer = subprocess.Popen(command)
        self._stack.callback(trainer.wait)
        self._stack.callback(trainer.kill)
        self.trainers[replica] = trainer

    def trainer_ids(self) -> Mapping[str, int]:
        living = {
            name: trainer for name, trainer in self.trainers.items() if trainer.poll() is None
        }
        return {name: trainer.pid for name, trainer in living.items()}


@pytest.fixture
def processes() -> Iterator[Processes]:
    with contextlib.ExitStack() as stack:
        yield Processes(stack)


@pytest.mark.parametrize("overlaps", [True, False])
async def test_a_process_beside_one_of_an_earlier_attempt_is_seen(
    processes: Processes, *, overlaps: bool
) -> None:
    kill = kills.Kill(0.0, 0.5, kills.Victim.TRAINER)
    killer = kills.Killer([kill])
    processes.start("worker-0")
    processes.start("worker-1")
    watching = asyncio.create_task(killer.run(processes, None))
    await waiting.until_in_loop(lambda: len(processes.trainer_ids()) == 1, "the kill", 20)
    assert processes.trainers["worker-1"].returncode == -9
    if not overlaps:
        processes.trainers["worker-0"].kill()
        await waiting.until_in_loop(lambda: not processes.trainer_ids(), "the end", 20)
    processes.start("worker-1")
    await waiting.until_in_loop(lambda: len(killer.trainer_ids) == 3, "the next process", 20)
    watching.cancel()
    assert killer.killed == 1
    assert bool(killer.overlap) is overlaps


def test_a_program_that_watches_a_trainer_is_none(processes: Processes) -> None:
    processes.start("worker-0")
    processes.start("worker-1", (*TRAINER[:-1], "/packages/tfparallel_trainer/heartbeat.py"))
    ids = processes.trainer_ids()
    assert kills.is_trainer(ids["worker-0"])
    assert not kills.is_trainer(ids["worker-1"])


def test_a_seed_draws_the_same_kills_again() -> None:
    drawn = [kills.draw(seed, 10.0) for seed in range(40)]
    assert drawn == [kills.draw(seed, 10.0) for seed in range(40)]
    drawn_kills = [kill for kills_of_run in drawn for kill in kills_of_run]
    assert {len(kills_of_run) for kills_of_run in drawn} == {1, 2, 3}
    assert {kill.victim for kill in drawn_kills} == set(kills.ON_PROCESSES)
    assert all(0 <= kill.delay <= 10 and 0 <= kill.replica < 1 for kill in drawn_kills)


@pytest.mark.parametrize(("strategy", "is_fault"), [("stages", True), ("ParameterServer", False)])
def test_only_with_servers_may_a_job_succeed_before_a_loss_is_answered(
    strategy: str, *, is_fault: bool
) -> None:
    killer = kills.Killer([])
    killer.killed = 1
    status = job_status.JobStatus(state=names.State.SUCCEEDED, attempt=1)
    judged = campaign_run.judge(strategy, status, killer, pathlib.Path(), 1.0)
    assert judged.problems == (["0 restarts after 1 kills"] if is_fault else [])
