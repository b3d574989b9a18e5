"""Scaling: how many workers the job has, and when it gets the number in its spec."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import observation, view
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.life import completion, restarts
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View

_WORKER = types.Role.WORKER


def selector(job: types.TFParallelJob) -> str:
    """Return the labels of the workers' pods, as a selector."""
    if _WORKER not in job.spec.tf_replica_specs:
        return ""
    return f"{names.LABEL_JOB}={job.metadata.name},{names.LABEL_ROLE}={_WORKER.label}"


def in_force(layout: Layout, pods: tuple[observation.Pod, ...]) -> Layout:
    """Return the layout with the number of workers with which the job's attempt began.

    An attempt without pods may still begin with the number in the spec. So may an attempt that
    follows a suspension or an admission.
    """
    job = layout.job
    waits = conditions.is_false(job.status, names.ConditionType.ADMITTED)
    if waits or conditions.is_true(job.status, names.ConditionType.SUSPENDED):
        return layout
    begun = any(counts.seen for counts in job.status.replicas.values()) or any(
        view.is_of_attempt(pod, job.status) for pod in pods
    )
    if not begun or job.status.workers is None:
        return layout
    return dataclasses.replace(layout, counts={**layout.counts, _WORKER: job.status.workers})


def due(status: job_status.JobStatus, pods: View) -> datetime.datetime | None:
    """Return when workers may be scaled; None: at once, because scaling interrupts no training."""
    if status.attempt_time is None or not completion.running(pods):
        return None
    pause = datetime.timedelta(seconds=pods.layout.job.spec.run_policy.scale_cooldown_seconds)
    return status.attempt_time + pause


def scaled(context: DecisionContext, status: job_status.JobStatus) -> job_status.JobStatus:
    """Return the status that writes the new number of workers ahead.

    Replicas that need each other begin a new attempt. With parameter servers, only the chief
    restarts, because it fixes the number of workers when it starts.
    """
    before, after = context.layout, context.requested
    status = status.model_copy(update={"workers": after.workers})
    if before.is_gang:
        # No loss has led to this attempt: none turns out to be a disruption by its old pods.
        return restarts.next_attempt(status.model_copy(update={"last_cause": ""}), context.now)
    leaving = set(before.all_replicas) - set(after.all_replicas)
    return restarts.restart_alone(status, {before.coordinator} | leaving, context.now)
