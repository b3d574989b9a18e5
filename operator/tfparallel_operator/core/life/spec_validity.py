"""Handles jobs whose newest spec is unusable, and says so in the status."""

import datetime

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, installation, observation
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import ending
from tfparallel_operator.core.pods import cluster_spec
from tfparallel_operator.core.queue import gang, workload
from tfparallel_operator.core.status import conditions

_TOO_LONG = (
    "spec.tfReplicaSpecs: TF_CONFIG would be {} bytes longer than a pod can have. Give"
    " fewer replicas or a shorter metadata.name, or train with spec.trainer, whose replicas share a"
    " file"
)


def find_problem_of_edit(
    requested: Layout, settings: installation.InstallationSettings
) -> str | None:
    """Say why a job that has begun cannot use its newest spec; None: it can."""
    job = requested.job
    if not job.status.attempt:
        return None
    edited = job.metadata.generation > job.status.observed_generation
    return find_problem(requested, settings, is_gang_scheduled=not edited)


def find_problem(
    layout: Layout, settings: installation.InstallationSettings, *, is_gang_scheduled: bool
) -> str | None:
    """Say why this installation cannot start a job; None: it can.

    If a gang is already scheduled, it stays so even if the installation loses its scheduler.
    """
    problem = None if is_gang_scheduled else gang.find_problem(layout, settings.gangs)
    return problem or _find_excess(layout, settings)


def _find_excess(layout: Layout, settings: installation.InstallationSettings) -> str | None:
    """Say why no pod of a job could start: its TF_CONFIG is too long; None: it fits."""
    reads_file = layout.job.spec.trainer is not None
    if reads_file and cluster_spec.is_shared(layout, settings.share_above):
        return None
    excess = cluster_spec.excess(layout)
    return _TOO_LONG.format(excess) if excess else None


def decide_without_spec(
    invalid: observation.InvalidJob, children: observation.Children, now: datetime.datetime
) -> decision.Decision:
    """Decide about a job that has no usable spec.

    If the job never began, it fails, and the operator checks the next generation of its spec. If it
    has begun, or if a newer version of the operator may know its fields, the operator does nothing.
    """
    if invalid.status.attempt or invalid.is_of_newer_version:
        status, events = set_spec_condition(invalid.status, invalid.problem, now, None)
        return decision.Decision(status, events=events)
    return _reject(invalid, children, now)


def set_spec_condition(
    status: job_status.JobStatus,
    problem: observation.SpecProblem | None,
    now: datetime.datetime,
    in_force: int | None,
) -> tuple[job_status.JobStatus, tuple[decision.JobEvent, ...]]:
    """Say in a condition whether the newest spec is usable, if it was ever unusable.

    `in_force` is the generation that the job uses; None: no usable spec is known.
    """
    kind, reason = names.ConditionType.SPEC_INVALID, names.Reason.INVALID_SPEC
    if problem is None:
        if not conditions.is_true(status, kind):
            return status, ()
        reason, message = names.Reason.SPEC_CORRECTED, "the spec is valid, and the job uses it"
    elif in_force is None:
        message = (
            f"{problem.message}; correct the spec. No valid spec is recorded, so the operator does"
            " nothing until you do"
        )
    else:
        message = f"{problem.message}; the job continues with generation {in_force} of its spec"
    before = conditions.find(status, kind)
    stamp = conditions.Stamp(now, (in_force or 0) if problem is None else problem.generation)
    changed = stamp.set(status, kind, problem is not None, reason, message)
    if before is not None and conditions.find(changed, kind) == before:
        return status, ()
    event = decision.normal if problem is None else decision.warning
    return changed, (event(reason, message),)


def _reject(
    invalid: observation.InvalidJob, children: observation.Children, now: datetime.datetime
) -> decision.Decision:
    """Fail a job that never had a usable spec.

    Pods of a spec that was edited before the first status are deleted. They stay only if that spec
    was too large for the record.
    """
    status, problem = invalid.status, invalid.problem
    deletions = ending.delete_pods(children.pods)
    if conditions.finished(status) and not conditions.is_spec_corrected(status, problem.generation):
        return decision.Decision(status, deletions=deletions)
    stamp = conditions.Stamp(now, problem.generation)
    reason, finished = names.Reason.INVALID_SPEC, names.Reason.JOB_FINISHED
    status = conditions.remove(status, names.ConditionType.SUSPENDED)
    status = stamp.clear(status, conditions.TRANSIENT, finished, "the spec is invalid")
    status = stamp.set(status, names.ConditionType.FAILED, True, reason, problem.message)
    end = {"observed_generation": problem.generation, "completion_time": now}
    return decision.Decision(
        status.model_copy(update=end),
        events=(decision.warning(reason, problem.message),),
        deletions=(*deletions, *workload.deletions(children.workloads)),
    )
