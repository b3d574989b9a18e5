"""When a job has succeeded, and when it runs."""

from tfparallel_operator.api import names, types
from tfparallel_operator.core.view import View

_WORKER = types.Role.WORKER


def success(view: View) -> tuple[names.Reason, str] | None:
    """Return the reason and the message if the job has succeeded.

    The chief decides. Without a chief, worker 0 decides, or all workers do with successPolicy
    AllWorkers.
    """
    job, chief = view.layout.job, view.layout.chief
    if chief is None and job.spec.success_policy is types.SuccessPolicy.ALL_WORKERS:
        workers = [replica for replica in view.layout.all_replicas if replica.role is _WORKER]
        needed = [worker for worker in workers if worker not in view.ignored]
        if all(worker in view.completed for worker in needed):
            return names.Reason.WORKERS_SUCCEEDED, f"all {len(needed)} workers ended with success"
        return None
    decisive = view.layout.coordinator
    if decisive not in view.completed:
        return None
    reason = names.Reason.CHIEF_SUCCEEDED if chief else names.Reason.WORKERS_SUCCEEDED
    return reason, f"{decisive.pod_name(job.metadata.name)} ended with success"


def running(view: View) -> bool:
    """Whether training can proceed.

    With parameter servers, some workers suffice; else it needs all.
    """
    training = [replica for replica in view.layout.training if replica not in view.ignored]
    if view.layout.is_gang:
        return all(map(view.is_up, training))
    workers = [replica for replica in training if replica.role is _WORKER]
    others = [replica for replica in training if replica.role is not _WORKER]
    return all(map(view.is_up, others)) and any(map(view.is_up, workers))
