"""`python -m testing.random_kills`: jobs on this machine, whose processes are killed at random.

Each run must end as if nothing had happened: the same bits, where the strategy is synchronous; one
restart recorded for each attempt; and no process of an attempt beside one of another attempt.
"""

import argparse
import asyncio
import contextlib
import dataclasses
import enum
import os
import pathlib
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from testing import paths
from testing.operator import local_jobs
from tfparallel.backends.local import local_run
from tfparallel.job_source import source
from tfparallel.rehearse import job_runs
from tfparallel_operator.api import names
from tfparallel_trainer.contract import weight_comparison

MODEL = paths.ROOT / "testing/trainer/models/slow_stream.py"
MAX_KILLS = 3
SYNCHRONOUS: Mapping[str, Mapping[str, Any]] = {
    "MultiWorkerMirrored": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}},
    "stages": {
        "strategy": "ModelSplit",
        "mesh": {"stage": 2},
        "tfReplicaSpecs": {"Worker": {"replicas": 2}},
    },
    "tensors": {
        "strategy": "ModelSplit",
        "mesh": {"tensor": 2},
        "tfReplicaSpecs": {"Worker": {"replicas": 2}},
    },
}
STRATEGIES: Mapping[str, Mapping[str, Any]] = {
    **SYNCHRONOUS,
    "ParameterServer": {
        "strategy": "ParameterServer",
        "tfReplicaSpecs": {"Chief": {}, "Worker": {"replicas": 2}, "PS": {}},
    },
}
_POLL_SECONDS = 0.01


class Victim(enum.StrEnum):
    """What is killed of a replica."""

    TRAINER = "trainer"
    AGENT = "agent"
    """The container's first process, which is the trainer's parent."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kill:
    """A process of a replica dies."""

    delay: float
    """Seconds after the begin of the run, or after the kill before."""
    replica: float
    """Which training replica is hit: its place in their sorted list, as a fraction in [0, 1)."""
    victim: Victim


def draw(seed: int, seconds: float) -> Sequence[Kill]:
    """Draw the kills of a run.

    Args:
        seed: what they follow from.
        seconds: how long an undisturbed run takes.
    """
    source_of_chance = random.Random(seed)  # noqa: S311 (no secret)
    return [
        Kill(
            source_of_chance.uniform(0, seconds),
            source_of_chance.random(),
            source_of_chance.choice(list(Victim)),
        )
        for _ in range(source_of_chance.randint(1, MAX_KILLS))
    ]


class HasTrainers(Protocol):
    """The local cluster, as far as a killer knows it."""

    def trainer_ids(self) -> Mapping[str, int]:
        """Return the process ids of the trainers that run now, by their replicas."""


class Killer:
    """A `local_run.Companion` that kills processes, and sees that attempts do not overlap."""

    def __init__(self, kills: Sequence[Kill]) -> None:
        self._kills = list(kills)
        self.trainer_ids: set[int] = set()
        """Process ids of trainers."""
        self._survivors: set[int] = set()
        """Processes that lived when another one was killed: they belong to an earlier attempt."""
        self.killed = 0
        self.overlapped = False
        """Whether a process began while one of an earlier attempt still lived."""

    async def run(self, local: HasTrainers, _: pathlib.Path | None) -> None:
        """Look at the processes until the run ends."""
        begun = time.monotonic()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            ids = {
                replica: number
                for replica, number in local.trainer_ids().items()
                if _trains(number)
            }
            self._look_for_overlap(set(ids.values()))
            if self._kills and ids and time.monotonic() > begun + self._kills[0].delay:
                self._kill(self._kills.pop(0), ids)
                begun = time.monotonic()

    def _look_for_overlap(self, living: set[int]) -> None:
        self._survivors &= living
        if living - self.trainer_ids and self._survivors:
            self.overlapped = True
        self.trainer_ids |= living

    def _kill(self, kill: Kill, ids: Mapping[str, int]) -> None:
        replica = sorted(ids)[int(kill.replica * len(ids))]
        number = ids[replica]
        with contextlib.suppress(ProcessLookupError, FileNotFoundError):
            if kill.victim is Victim.AGENT:
                status = pathlib.Path(f"/proc/{number}/stat").read_text(encoding="ascii")
                parent = int(status.rpartition(")")[2].split()[1])
                number = number if parent == os.getpid() else parent
            os.kill(number, signal.SIGKILL)
            self.killed += 1
            self._survivors |= set(ids.values()) - {ids[replica]}


def _trains(process_id: int) -> bool:
    """Whether a process is a trainer: while an agent imports TensorFlow, it has other children."""
    with contextlib.suppress(OSError):
        command = pathlib.Path(f"/proc/{process_id}/cmdline").read_bytes()
        return b"tfparallel_trainer" in command
    return False


@dataclasses.dataclass(frozen=True, slots=True)
class CampaignRun:
    """What a run has left."""

    results: pathlib.Path
    seconds: float
    attempts: int
    killed: int
    problems: Sequence[str]
    """Empty: it ended as an undisturbed run does, as far as one run shows it."""


def run(folder: pathlib.Path, strategy: str, kills: Sequence[Kill]) -> CampaignRun:
    """Run a job to its end, in a new folder."""
    folder.mkdir()
    shutil.copy(MODEL, folder / "model.py")
    recorder = local_jobs.RecordingWatcher()
    job_source = source.read(local_jobs.write(folder, _job(strategy)))
    killer = Killer(kills)
    begun = time.monotonic()
    outcome = asyncio.run(local_run.run(job_source, folder / "out", recorder, companion=killer.run))
    if outcome.stopped_by is not None:
        raise SystemExit(f"stopped by {outcome.stopped_by.name}")
    status, problems = outcome.job.status, []
    if status.state is not names.State.SUCCEEDED:
        problems.append(f"the job ended as {status.state}: {recorder.lines[-10:]}")
    restarts = status.restarts.failure + status.restarts.disruption
    if strategy in SYNCHRONOUS:
        if killer.overlapped:
            problems.append("a process began while one of an earlier attempt lived")
        if restarts != status.attempt - 1:
            problems.append(f"attempt {status.attempt} after {restarts} restarts")
    if not min(killer.killed, 1) <= restarts <= killer.killed:
        problems.append(f"{restarts} restarts after {killer.killed} kills")
    if outcome.trained is None:
        raise ValueError("a job of the shipped trainer has a folder of results")
    seconds = time.monotonic() - begun
    return CampaignRun(outcome.trained, seconds, status.attempt, killer.killed, problems)


def _job(strategy: str) -> dict[str, Any]:
    spec = dict(STRATEGIES[strategy])
    trainer = {
        "source": {"configMap": {"name": "code"}},
        "steps": 60,
        "globalBatchSize": 18,
        "verify": "Off",
        "checkpoint": {"claim": "c", "everySteps": 7},
    }
    budget = {"backoffLimit": MAX_KILLS}
    roles = spec.pop("tfReplicaSpecs")
    return local_jobs.job(roles, trainer=trainer, runPolicy=budget, **spec)


def compare(undisturbed: CampaignRun, disturbed: CampaignRun) -> Sequence[str]:
    """Return what differs in the weights, the optimizer's state and the counters of two runs."""
    compared = job_runs.compare_weights(undisturbed.results, disturbed.results)
    if compared is None:
        return ["a run left no checkpoint"]
    return [] if compared.is_bit_equal else [_describe(compared)]


def _describe(compared: weight_comparison.WeightComparison) -> str:
    return (
        f"{compared.differing} variables differ, by up to {compared.largest_difference},"
        f" after steps {compared.steps}"
    )


def main(arguments: Sequence[str]) -> int:
    """Run a campaign; returns 1 if a run shows a fault."""
    parser = argparse.ArgumentParser(prog="python -m testing.random_kills")
    parser.add_argument("--strategy", choices=STRATEGIES, required=True)
    parser.add_argument("--runs", type=int, default=60)
    parser.add_argument("--seed", type=int, default=1, help="of the first run; then it counts up")
    options = parser.parse_args(arguments)
    strategy, failed, kills, attempts = options.strategy, 0, 0, 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        undisturbed = run(folder / "undisturbed", strategy, ())
        print(f"{strategy}: undisturbed in {undisturbed.seconds:.1f} s", flush=True)
        for seed in range(options.seed, options.seed + options.runs):
            disturbed = run(folder / str(seed), strategy, draw(seed, undisturbed.seconds))
            problems = [*disturbed.problems]
            if strategy in SYNCHRONOUS and not problems:
                problems += compare(undisturbed, disturbed)
            kills, attempts = kills + disturbed.killed, attempts + disturbed.attempts
            failed += bool(problems)
            print(
                f"seed {seed}: {disturbed.killed} kills, {disturbed.attempts} attempts,"
                f" {disturbed.seconds:.1f} s: {'; '.join(problems) or 'equal'}",
                flush=True,
            )
            shutil.rmtree(folder / str(seed))
    print(f"{options.runs} runs, {kills} kills, {attempts} attempts: {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
