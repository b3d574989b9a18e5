"""When a job has succeeded, and when it runs."""

from tfparallel_operator.api import names, types
from tfparallel_operator.core import observation, replicas, view


def success(job: types.TFParallelJob, sight: view.View) -> tuple[names.Reason, str] | None:
    """Return reason and sentence when the job has succeeded.

    The chief decides; without one worker 0, or all workers with successPolicy AllWorkers.
    """
    leader = replicas.chief(job)
    if leader is None and job.spec.success_policy is types.SuccessPolicy.ALL_WORKERS:
        workers = [replica for replica in sight.wanted if replica.role is types.Role.WORKER]
        needed = [worker for worker in workers if worker not in sight.ignored]
        if all(worker in sight.completed for worker in needed):
            return names.Reason.WORKERS_SUCCEEDED, f"all {len(needed)} workers ended with success"
        return None
    decisive = leader or replicas.Replica(types.Role.WORKER, 0)
    if decisive not in sight.completed:
        return None
    reason = names.Reason.CHIEF_SUCCEEDED if leader else names.Reason.WORKERS_SUCCEEDED
    return reason, f"{decisive.pod_name(job.metadata.name)} ended with success"


def running(job: types.TFParallelJob, sight: view.View) -> bool:
    """Whether training can go on: with servers a part of the workers will do, else it takes all."""
    training = [
        replica
        for replica in sight.wanted
        if replica.role is not types.Role.EVALUATOR and replica not in sight.ignored
    ]
    if replicas.strategy(job) is not types.Strategy.PARAMETER_SERVER:
        return all(_up(sight, replica) for replica in training)
    workers = [replica for replica in training if replica.role is types.Role.WORKER]
    needed = [replica for replica in training if replica.role is not types.Role.WORKER]
    return all(_up(sight, replica) for replica in needed) and any(
        _up(sight, worker) for worker in workers
    )


def _up(sight: view.View, replica: replicas.Replica) -> bool:
    phase = sight.phase(replica)
    return phase in (observation.Phase.RUNNING, observation.Phase.SUCCEEDED)
