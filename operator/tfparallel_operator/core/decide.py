"""The one decision: from a job and its children to what to write next."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import (
    build,
    claims,
    cleanup,
    cluster_spec,
    completion,
    conditions,
    counts,
    deadlines,
    decision,
    forced,
    gang,
    host_network,
    observation,
    queueing,
    replicas,
    restarts,
    scaling,
    situation,
    training,
    workload,
)

_NEVER_RAN = (
    names.Reason.INVALID_SPEC,
    names.Reason.INVALID_TEMPLATE,
    names.Reason.NAME_CONFLICT,
)
"""Failures before anything trained: the next generation of the spec starts the job after all."""

_LOOK_FOR_PORTS = datetime.timedelta(seconds=10)
"""How often a job that waits for ports looks whether some are free."""

_TOO_LONG = (
    "spec.tfReplicaSpecs: TF_CONFIG would be {} bytes longer than a pod can have. Give"
    " fewer replicas or a shorter metadata.name, or train with spec.trainer, whose replicas share a"
    " file"
)


def decide(
    job: types.TFParallelJob,
    children: observation.Children,
    now: datetime.datetime,
    settings: build.Settings,
    refusal: observation.Refusal | None = None,
    problem: observation.Problem | None = None,
) -> decision.Decision:
    """Say what to write for a job, given all that is known.

    Args:
        job: the job with its last written status.
        children: what was observed of its children.
        now: the time, with time zone; whole seconds.
        settings: what the installation decides for every job.
        refusal: a create that the API server has refused since the last decision.
        problem: why the newest spec cannot be used; then the job has the last one that could.
    """
    manager = job.spec.managed_by or job.spec.run_policy.managed_by
    if manager not in (None, names.CONTROLLER):
        return decision.Decision(job.status)
    if host_network.lacks_ports(job) and children.host_port is not None:
        job = host_network.with_ports(job, children.host_port)
    status, news = _judged(job.status, problem, now, job.metadata.generation)
    job = job.model_copy(update={"status": status})
    wanted = scaling.workers(job)
    in_force = scaling.in_force(job, children.pods)
    made = _decide(situation.Case(in_force, children, now, settings, wanted), refusal)
    overdue = forced.deletions(children.pods, now)
    return dataclasses.replace(
        made,
        events=(*news, *made.events),
        deletions=(*made.deletions, *overdue.deletions),
        changes=(*build.config_change(job, settings, children.config), *made.changes),
        wake_at=deadlines.earliest(made.wake_at, overdue.look_again_at),
    )


def reject(
    body: Mapping[str, Any],
    error: load.SpecError,
    now: datetime.datetime,
    children: observation.Children | None = None,
) -> decision.Decision:
    """Say what to write for an object that never was a valid job: why, and nothing more.

    The next generation of its spec is looked at anew.

    Raises:
        load.StatusError: its status cannot be read.
    """
    generation = int(body.get("metadata", {}).get("generation", 0))
    status = load.read_status(body)
    if conditions.finished(status) and not _corrected(status, generation):
        return decision.Decision(status)
    status = conditions.without(status, names.Condition.SUSPENDED)
    for kind in situation.PASSING:
        if conditions.holds(status, kind):
            status = conditions.set_condition(
                status,
                kind,
                true=False,
                reason=names.Reason.JOB_FINISHED,
                message="the spec is invalid",
                now=now,
                generation=generation,
            )
    status = conditions.set_condition(
        status,
        names.Condition.FAILED,
        true=True,
        reason=names.Reason.INVALID_SPEC,
        message=str(error),
        now=now,
        generation=generation,
    ).model_copy(update={"observed_generation": generation, "completion_time": now})
    event = decision.Event(decision.EventType.WARNING, names.Reason.INVALID_SPEC, str(error))
    workloads = () if children is None else children.workloads
    removals = tuple(workload.deletion(one) for one in workloads if not one.deleting)
    return decision.Decision(status, events=(event,), deletions=removals)


def hold(
    status: job_status.JobStatus, problem: observation.Problem, now: datetime.datetime
) -> decision.Decision:
    """Leave a job as it is whose spec cannot be used, and of which no other is on record."""
    status, news = _judged(status, problem, now, None)
    return decision.Decision(status, events=news)


def _judged(
    status: job_status.JobStatus,
    problem: observation.Problem | None,
    now: datetime.datetime,
    in_force: int | None,
) -> tuple[job_status.JobStatus, tuple[decision.Event, ...]]:
    """Say in a condition whether the newest spec can be used, where it could not be.

    Args:
        status: the job's status so far.
        problem: why the newest spec cannot be used, if so.
        now: the time.
        in_force: the generation that the job has; None: no spec that can be used is known.
    """
    kind = names.Condition.SPEC_INVALID
    before = conditions.find(status, kind)
    if problem is None:
        if not conditions.holds(status, kind):
            return status, ()
        reason, message = names.Reason.SPEC_CORRECTED, "the spec is valid and in force"
    elif in_force is None:
        reason = names.Reason.INVALID_SPEC
        message = (
            f"{problem.message}; correct the spec: the operator leaves the job alone until then,"
            " because no valid one is on record"
        )
    else:
        reason = names.Reason.INVALID_SPEC
        message = f"{problem.message}; the job goes on with generation {in_force} of its spec"
    changed = conditions.set_condition(
        status,
        kind,
        true=problem is not None,
        reason=reason,
        message=message,
        now=now,
        generation=(in_force or 0) if problem is None else problem.generation,
    )
    if before is not None and conditions.find(changed, kind) == before:
        return status, ()
    event_type = decision.EventType.NORMAL if problem is None else decision.EventType.WARNING
    return changed, (decision.Event(event_type, reason, message),)


def _decide(case: situation.Case, refusal: observation.Refusal | None) -> decision.Decision:
    status = _described(case)
    generation = case.job.metadata.generation
    if conditions.finished(status) and not _corrected(status, generation):
        return _ended(case, status)
    if _has_succeeded(case, status):
        return training.train(case, status, ())
    if refusal is not None and refusal.final:
        return case.end(status, names.Condition.FAILED, refusal.reason, refusal.message)
    problem = gang.problem(case.job, case.settings.gangs)
    if problem is not None and not _begun(status):
        return case.end(status, names.Condition.FAILED, names.Reason.INVALID_SPEC, problem)
    if case.job.spec.run_policy.suspend:
        return _suspended(case, status)
    if refusal is not None:
        return training.refused(case, status, refusal)
    message = too_long(case.job, case.settings)
    if message is not None:
        return case.end(status, names.Condition.FAILED, names.Reason.INVALID_SPEC, message)
    if queueing.queued(case.job, case.children, case.settings) and not queueing.admitted(case):
        return queueing.wait(case, status, begun=_begun(status))
    if host_network.lacks_ports(case.job):
        return _portless(case, status)
    status, events = _started(case, status)
    return training.train(case, status, events)


def problem_of_edit(job: types.TFParallelJob, settings: build.Settings) -> str | None:
    """Say why the newest spec of a job that has begun cannot be in force; None: it can."""
    if not job.status.attempt:
        return None
    edited = job.metadata.generation > job.status.observed_generation
    problem = gang.problem(job, settings.gangs) if edited else None
    return problem or too_long(job, settings)


def too_long(job: types.TFParallelJob, settings: build.Settings) -> str | None:
    """Say why no pod of a job could start: its TF_CONFIG is too long; None: it fits."""
    if cluster_spec.is_shared(job, settings.share_above):
        return None
    excess = cluster_spec.excess(job)
    return _TOO_LONG.format(excess) if excess else None


def _described(case: situation.Case) -> job_status.JobStatus:
    """Bring what follows from the spec alone into the status."""
    described = {
        "strategy": replicas.strategy(case.job).value,
        "workers": scaling.workers(case.job),
        "selector": scaling.selector(case.job),
    }
    status = case.job.status.model_copy(update=described)
    trainer = case.job.spec.trainer
    if trainer is None:
        return status
    if trainer.checkpoint is not None:
        reason = names.Reason.CHECKPOINT_CONFIGURED
        claim, uri = trainer.checkpoint.claim, trainer.checkpoint.uri
        place = uri if claim is None else f"claim {claims.name(case.job, claim)}"
        message = f"a restart goes on from the checkpoints on {place}"
    else:
        reason = names.Reason.NO_CHECKPOINT
        message = "a restart begins at step 0: set spec.trainer.checkpoint to keep state"
    kept = trainer.checkpoint is not None
    return case.condition(status, names.Condition.RESUMABLE, kept, reason, message)


def _started(
    case: situation.Case, status: job_status.JobStatus
) -> tuple[job_status.JobStatus, tuple[decision.Event, ...]]:
    """Begin the first attempt, or the next one after a suspension or a correction."""
    goes_on, waited = _begun(status), conditions.denied(status, names.Condition.ADMITTED)
    status = queueing.with_admission(case, status)
    if goes_on:
        return status, ()
    suspended = conditions.holds(status, names.Condition.SUSPENDED)
    reason = names.Reason.JOB_ADMITTED if waited else names.Reason.JOB_STARTED
    if suspended:
        reason, message = names.Reason.JOB_RESUMED, "spec.runPolicy.suspend is false"
        status = case.condition(status, names.Condition.SUSPENDED, False, reason, message)
    status = conditions.without(status, names.Condition.FAILED)
    status = restarts.next_attempt(status, case.now)
    begun = {"start_time": case.now, "completion_time": None, "last_cause": ""}
    status = status.model_copy(update=begun)
    count = len(replicas.expand(case.job))
    return status, (case.normal(reason, f"attempt {status.attempt} with {count} replicas"),)


def _begun(status: job_status.JobStatus) -> bool:
    """Whether an attempt goes on: the job is not suspended, nor refused, nor waits in a queue."""
    waits = conditions.denied(status, names.Condition.ADMITTED)
    return bool(status.attempt) and not waits and not _rests(status)


def _rests(status: job_status.JobStatus) -> bool:
    resting = (names.Condition.SUSPENDED, names.Condition.FAILED)
    return any(conditions.holds(status, kind) for kind in resting)


def _has_succeeded(case: situation.Case, status: job_status.JobStatus) -> bool:
    """Whether a job was done before it was suspended, refused a pod, or lost its place."""
    done = status.attempt and not _rests(status)
    return bool(done) and completion.success(case.job, case.sight(status)) is not None


def _portless(case: situation.Case, status: job_status.JobStatus) -> decision.Decision:
    """Wait until other jobs on their nodes' network have ended."""
    kind, reason = names.Condition.CREATION_REFUSED, names.Reason.HOST_PORTS_TAKEN
    message = (
        f"hostNetwork: no {host_network.needed(case.job)} ports in a row are free: other jobs on"
        " their nodes' network have to end first"
    )
    told = conditions.holds(status, kind)
    status = case.condition(status, kind, True, reason, message)
    return decision.Decision(
        case.observed(status),
        events=() if told else (case.warning(reason, message),),
        wake_at=case.now + _LOOK_FOR_PORTS,
    )


def _suspended(case: situation.Case, status: job_status.JobStatus) -> decision.Decision:
    reason, message = names.Reason.JOB_SUSPENDED, "spec.runPolicy.suspend is true"
    was_suspended = conditions.holds(status, names.Condition.SUSPENDED)
    status = conditions.without(status, names.Condition.FAILED)
    status = case.rested(status, reason, message)
    status = case.condition(status, names.Condition.SUSPENDED, True, reason, message)
    status = counts.count(status, case.sight(status))
    return decision.Decision(
        case.observed(status),
        events=() if was_suspended else (case.normal(reason, message),),
        deletions=(*case.forsaken(), *queueing.removals(case)),
    )


def _ended(case: situation.Case, status: job_status.JobStatus) -> decision.Decision:
    sight = case.sight(status)
    status = counts.count(status, sight, ended=True)
    left = cleanup.after_end(case.job, status, case.children.pods, case.now)
    return decision.Decision(
        case.observed(status),
        deletions=(*situation.deletions(left.pods), *gang.removals(case.children.groups)),
        changes=queueing.end(case, status),
        delete_job=left.delete_job,
        wake_at=left.look_again_at,
    )


def _corrected(status: job_status.JobStatus, generation: int) -> bool:
    """Whether the job failed for a spec that has been changed since."""
    failed = conditions.find(status, names.Condition.FAILED)
    return (
        failed is not None
        and failed.reason in _NEVER_RAN
        and failed.observed_generation < generation
    )
