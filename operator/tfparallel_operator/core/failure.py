"""Losses of replicas: what caused them, and what the strategy needs to be run again."""

import dataclasses
import datetime
import enum
from collections.abc import Sequence

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import observation, replicas, view
from tfparallel_trainer.contract import exits

_LONGEST_MESSAGE = 600
_FIRST_SIGNAL_CODE = 128
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


SETTLING = datetime.timedelta(seconds=10)
"""How long the exit of a replica that lost a peer waits for the peer's own to be seen."""


class Cause(enum.StrEnum):
    """Why a replica was lost: only the job's own failures count against its budget."""

    FAILURE = "failure"
    DISRUPTION = "disruption"


class Scope(enum.StrEnum):
    """What has to run again after a loss."""

    GANG = "all replicas"
    REPLICA = "this replica"
    REPLICA_AND_CHIEF = "this server and the chief"


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A replica that ended without success, or whose pod is gone."""

    replica: replicas.Replica
    cause: Cause
    exit: observation.Exit | None

    def describe(self, job_name: str) -> str:
        """Say which replica was lost, and how, with what it said itself of its end."""
        name = self.replica.pod_name(job_name)
        if self.exit is None:
            return f"{name} vanished"
        if self.exit.code < 0:
            return f"{name} ended: {self.exit.reason} {self.exit.message}".rstrip()
        meaning = exits.describe(self.exit.code)
        reason = f", {self.exit.reason}" if self.exit.reason not in ("", "Error") else ""
        told = f"{name} exited with code {self.exit.code} ({meaning}{reason})"
        said = " ".join(self.exit.message.split()).rstrip(".")[:_LONGEST_MESSAGE]
        return f"{told}: {said}" if said else told


def losses(sight: view.View, *, all_created: bool) -> tuple[Loss, ...]:
    """List the losses of an attempt, the root cause first.

    When one replica is lost its peers end too, so only the first loss counts: one of training
    before the evaluator's, a disruption before a failure, an exit before the exits of peers that
    say they lost someone, then the earliest.
    A replica without a pod is lost only when the pod has existed (`all_created`).
    """
    found = [_loss(pod) for pod in sight.current.values() if pod.phase is observation.Phase.FAILED]
    if all_created:
        names_in_use = {pod.replica for pod in sight.stale}
        found += [
            Loss(replica, Cause.DISRUPTION, None)
            for replica in sight.missing
            if replica not in names_in_use
        ]
    return tuple(sorted(found, key=_root_first))


def _loss(pod: observation.Pod) -> Loss:
    taken = pod.disrupted or pod.deleting
    return Loss(pod.replica, Cause.DISRUPTION if taken else Cause.FAILURE, pod.exit)


def _root_first(loss: Loss) -> tuple[bool, bool, bool, datetime.datetime]:
    code = None if loss.exit is None else loss.exit.code
    finished_at = None if loss.exit is None else loss.exit.finished_at
    return (
        loss.replica.role is types.Role.EVALUATOR,
        loss.cause is not Cause.DISRUPTION,
        code == exits.Exit.PEER_LOST,
        finished_at or _LAST,
    )


def settles_at(loss: Loss, sight: view.View) -> datetime.datetime | None:
    """Return until when a loss may turn out to be the consequence of one that is not seen yet.

    None: it counts at once.
    """
    if loss.exit is None or loss.exit.code != exits.Exit.PEER_LOST:
        return None
    if loss.exit.finished_at is None or all(sight.phase(one).ended for one in sight.wanted):
        return None
    return loss.exit.finished_at + SETTLING


def permits_restart(job: types.TFParallelJob, loss: Loss) -> bool:
    """Whether a lost replica may be run again, its budget aside."""
    if loss.cause is Cause.DISRUPTION:
        return True
    code = -1 if loss.exit is None else loss.exit.code
    match replicas.by_role(job)[loss.replica.role].restart_policy:
        case types.RestartPolicy.NEVER:
            return False
        case types.RestartPolicy.EXIT_CODE:
            return code < 0 or code >= _FIRST_SIGNAL_CODE
        case types.RestartPolicy.ALWAYS | types.RestartPolicy.ON_FAILURE:
            return True
        case None:
            return _contract_permits(code)


def _contract_permits(code: int) -> bool:
    """What the trainer's exit contract says; codes outside it (signals, crashes) may be retried.

    It holds for commands of people's own too: their scripts may call the trainer's `fit`.
    """
    try:
        return exits.Exit(code).retryable
    except ValueError:
        return True


def scope(job: types.TFParallelJob, loss: Loss) -> Scope:
    """Return what the strategy needs to be run again (DESIGN: one table by strategy)."""
    if loss.replica.role is types.Role.EVALUATOR:
        return Scope.REPLICA
    if replicas.strategy(job) is not types.Strategy.PARAMETER_SERVER:
        return Scope.GANG
    return Scope.REPLICA_AND_CHIEF if loss.replica.role is types.Role.PS else Scope.REPLICA


def counted(status: job_status.JobStatus, loss: Loss) -> int:
    """Return how many restarts are held against the budget that a loss is paid from.

    The evaluator has one of its own in each attempt, so that it can never use up that of training.
    """
    if loss.replica.role is types.Role.EVALUATOR:
        return status.replica_attempts.get(loss.replica.name, 0)
    return status.restarts.failure


def restart(
    job: types.TFParallelJob,
    status: job_status.JobStatus,
    loss: Loss,
    others: Sequence[Loss] = (),
) -> job_status.JobStatus:
    """Return the status that writes a restart ahead: its attempt is counted before any deletion.

    Replicas that were taken at the same time run again with it, in attempts of their own: nobody
    would know later that their pods have existed. Failed pods are still there to be counted.
    """
    counts = status.restarts
    if loss.replica.role is not types.Role.EVALUATOR or loss.cause is Cause.DISRUPTION:
        counts = counts.model_copy(update={loss.cause.value: getattr(counts, loss.cause.value) + 1})
    changed = status.model_copy(update={"restarts": counts, "all_created": False})
    reach = scope(job, loss)
    if reach is Scope.GANG:
        return next_attempt(changed)
    again: set[replicas.Replica] = set()
    for lost in (loss, *(other for other in others if other.cause is Cause.DISRUPTION)):
        again.add(lost.replica)
        if scope(job, lost) is Scope.REPLICA_AND_CHIEF:
            again.add(replicas.coordinator(job))
    attempts = dict(status.replica_attempts)
    for replica in again:
        attempts[replica.name] = attempts.get(replica.name, 0) + 1
    return changed.model_copy(update={"replica_attempts": attempts})


def next_attempt(status: job_status.JobStatus) -> job_status.JobStatus:
    """Return the status of a new attempt, in which every replica runs again."""
    forgotten = {
        role: counts.model_copy(update={"completed": ""})
        for role, counts in status.replicas.items()
    }
    return status.model_copy(
        update={
            "attempt": status.attempt + 1,
            "replica_attempts": {},
            "all_created": False,
            "replicas": forgotten,
        }
    )
