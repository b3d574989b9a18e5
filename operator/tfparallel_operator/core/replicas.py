"""Which replicas a job has, who leads them, and which strategy they follow."""

import dataclasses
from collections.abc import Mapping

from tfparallel_operator.api import types

_ORDER = (
    types.Role.CHIEF,
    types.Role.MASTER,
    types.Role.WORKER,
    types.Role.PS,
    types.Role.EVALUATOR,
)


@dataclasses.dataclass(frozen=True, slots=True)
class Replica:
    """One replica of a job, named by role and index."""

    role: types.Role
    index: int

    @property
    def name(self) -> str:
        """The replica's name within its job, such as worker-3."""
        return f"{self.role.label}-{self.index}"

    def pod_name(self, job_name: str) -> str:
        """The name of the replica's pod: a pure function, so that a repeated create collides."""
        return f"{job_name}-{self.name}"


def expand(job: types.TFParallelJob) -> tuple[Replica, ...]:
    """List all replicas of a job, the leading ones first."""
    return tuple(
        Replica(role, index) for role, count in counts(job).items() for index in range(count)
    )


def counts(job: types.TFParallelJob) -> dict[types.Role, int]:
    """Count the replicas by role, the leading roles first."""
    specs = by_role(job)
    return {role: specs[role].replicas for role in _ORDER if role in specs}


def by_role(job: types.TFParallelJob) -> Mapping[types.Role, types.ReplicaSpec]:
    """Return the replicas of each role, with the chief that the job may go without.

    The shipped trainer gives out the work of servers and workers from a chief. One that is not
    given is like a worker, without devices of its own: it computes nothing.
    """
    specs = job.spec.tf_replica_specs
    leaders = (types.Role.CHIEF, types.Role.MASTER)
    if job.spec.trainer is None or types.Role.PS not in specs or any(r in specs for r in leaders):
        return specs
    like = specs[types.Role.WORKER]
    return {
        types.Role.CHIEF: like.model_copy(update={"replicas": 1, "devices": None}),
        **specs,
    }


def strategy(job: types.TFParallelJob) -> types.Strategy:
    """Return the strategy that is given, or the one that the roles ask for."""
    if job.spec.strategy is not None:
        return job.spec.strategy
    if types.Role.PS in job.spec.tf_replica_specs:
        return types.Strategy.PARAMETER_SERVER
    training = sum(n for role, n in counts(job).items() if role is not types.Role.EVALUATOR)
    if training > 1 or elastic(job):
        return types.Strategy.MULTI_WORKER_MIRRORED
    return types.Strategy.MIRRORED


def elastic(job: types.TFParallelJob) -> bool:
    """Whether the workers may come and go."""
    worker = job.spec.tf_replica_specs.get(types.Role.WORKER)
    return worker is not None and (worker.min_replicas, worker.max_replicas) != (
        None,
        None,
    )


def is_gang(job: types.TFParallelJob) -> bool:
    """Whether the training replicas need each other in every step: they run again together."""
    return strategy(job) is not types.Strategy.PARAMETER_SERVER


def chief(job: types.TFParallelJob) -> Replica | None:
    """Return the replica whose end ends the job, when there is one."""
    for role in (types.Role.CHIEF, types.Role.MASTER):
        if role in by_role(job):
            return Replica(role, 0)
    return None


def coordinator(job: types.TFParallelJob) -> Replica:
    """Return the replica that reports progress: the chief, else worker 0 as in TensorFlow."""
    return chief(job) or Replica(types.Role.WORKER, 0)
