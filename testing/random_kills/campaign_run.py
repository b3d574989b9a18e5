"""What a run of a campaign has left, and what it shows."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

from testing import paths
from testing.random_kills import kills
from tfparallel.rehearse import job_runs
from tfparallel_operator.api import job_status, names
from tfparallel_trainer.contract import weight_comparison

MODEL = paths.ROOT / "testing/trainer/models/slow_stream.py"
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
_TRAINER = {
    "steps": 60,
    "globalBatchSize": 18,
    "verify": "Off",
}


@dataclasses.dataclass(frozen=True, slots=True)
class CampaignRun:
    """What a run has left."""

    results: pathlib.Path
    seconds: float
    attempts: int
    killed: int
    problems: Sequence[str]
    """Empty: it ended as an undisturbed run does, as far as one run shows it."""


def spec(strategy: str, source: str, claim: str) -> dict[str, Any]:
    """Return the spec of a job, with the names of its ConfigMap and of its claim."""
    return {
        **STRATEGIES[strategy],
        "trainer": {
            **_TRAINER,
            "source": {"configMap": {"name": source}},
            "checkpoint": {"claim": claim, "everySteps": 7},
        },
        "runPolicy": {"backoffLimit": kills.MAX_KILLS},
    }


def judge(
    strategy: str,
    status: job_status.JobStatus,
    killer: kills.Killer,
    results: pathlib.Path,
    seconds: float,
) -> CampaignRun:
    """Say what a run that has ended shows by itself."""
    problems = []
    if status.state is not names.State.SUCCEEDED:
        problems.append(f"the job ended as {status.state}")
    restarts = status.restarts.failure + status.restarts.disruption
    if strategy in SYNCHRONOUS:
        if killer.overlap:
            problems.append(f"attempts overlapped: {killer.overlap}")
        if restarts != status.attempt - 1:
            problems.append(f"attempt {status.attempt} after {restarts} restarts")
    # With servers, the chief may succeed before the loss of another replica is answered.
    fewest = min(killer.killed, 1) if strategy in SYNCHRONOUS else 0
    if not fewest <= restarts <= killer.killed:
        problems.append(f"{restarts} restarts after {killer.killed} kills")
    return CampaignRun(results, seconds, status.attempt, killer.killed, problems)


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
