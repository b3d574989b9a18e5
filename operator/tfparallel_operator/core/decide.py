"""The one decision: from a job and its children to what to write next."""

import dataclasses
import datetime
from collections.abc import Mapping
from typing import Any

import pydantic

from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import (
    build,
    completion,
    conditions,
    counts,
    decision,
    failure,
    observation,
    policy,
    replicas,
    restarts,
    view,
)

_FAILED = names.Condition.FAILED

_NEVER_RAN = (
    names.Reason.INVALID_SPEC,
    names.Reason.INVALID_TEMPLATE,
    names.Reason.NAME_CONFLICT,
)
"""Failures before anything trained: the next generation of the spec starts the job after all."""


def decide(
    job: types.TFParallelJob,
    children: observation.Children,
    now: datetime.datetime,
    settings: build.Settings,
    refusal: observation.Refusal | None = None,
) -> decision.Decision:
    """Say what to write for a job, given all that is known.

    Args:
        job: the job with its last written status.
        children: what was observed of its children.
        now: the time, with time zone; whole seconds.
        settings: what the installation decides for every job.
        refusal: a create that the API server refused for good since the last decision.
    """
    return _Case(job, children, now, settings).decide(refusal)


def reject(
    body: Mapping[str, Any], error: load.SpecError, now: datetime.datetime
) -> decision.Decision:
    """Say what to write for an object that is no valid job: why, and nothing more.

    The next generation of its spec is looked at anew.
    """
    generation = int(body.get("metadata", {}).get("generation", 0))
    try:
        status = job_status.JobStatus.model_validate(body.get("status") or {})
    except pydantic.ValidationError:
        status = job_status.JobStatus()
    if conditions.finished(status) and not _corrected(status, generation):
        return decision.Decision(status)
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
    return decision.Decision(status, events=(event,))


@dataclasses.dataclass(frozen=True, slots=True)
class _Case:
    """One decision's givens. The methods return values and keep nothing."""

    job: types.TFParallelJob
    children: observation.Children
    now: datetime.datetime
    settings: build.Settings

    def decide(self, refusal: observation.Refusal | None) -> decision.Decision:
        status = self._described()
        generation = self.job.metadata.generation
        if conditions.finished(status) and not _corrected(status, generation):
            return self._ended(status)
        if refusal is not None:
            return self._end(status, names.Condition.FAILED, refusal.reason, refusal.message)
        if self.job.spec.run_policy.suspend:
            return self._suspended(status)
        status, events = self._started(status)
        return self._train(status, events)

    def _described(self) -> job_status.JobStatus:
        """Bring what follows from the spec alone into the status."""
        status = self.job.status.model_copy(update={"strategy": replicas.strategy(self.job).value})
        trainer = self.job.spec.trainer
        if trainer is None:
            return status
        if trainer.checkpoint is not None:
            reason = names.Reason.CHECKPOINT_CONFIGURED
            message = f"a restart goes on from the checkpoints on claim {trainer.checkpoint.claim}"
        else:
            reason = names.Reason.NO_CHECKPOINT
            message = "a restart begins at step 0: set spec.trainer.checkpoint to keep state"
        kept = trainer.checkpoint is not None
        return self._condition(status, names.Condition.RESUMABLE, kept, reason, message)

    def _started(
        self, status: job_status.JobStatus
    ) -> tuple[job_status.JobStatus, tuple[decision.Event, ...]]:
        """Begin the first attempt, or the next one after a suspension or a correction."""
        suspended = conditions.holds(status, names.Condition.SUSPENDED)
        corrected = conditions.holds(status, names.Condition.FAILED)
        if status.attempt and not suspended and not corrected:
            return status, ()
        reason = names.Reason.JOB_RESUMED if suspended else names.Reason.JOB_STARTED
        if suspended:
            message = "spec.runPolicy.suspend is false"
            status = self._condition(status, names.Condition.SUSPENDED, False, reason, message)
        status = conditions.without(status, names.Condition.FAILED)
        status = restarts.next_attempt(status, self.now)
        begun = {"start_time": self.now, "completion_time": None, "last_cause": ""}
        status = status.model_copy(update=begun)
        count = len(replicas.expand(self.job))
        return status, (self._event(reason, f"attempt {status.attempt} with {count} replicas"),)

    def _train(
        self, status: job_status.JobStatus, events: tuple[decision.Event, ...]
    ) -> decision.Decision:
        sight = view.build(self.job, status, self.children)
        success = completion.success(self.job, sight)
        if success is not None:
            return self._end(status, names.Condition.SUCCEEDED, *success)
        deadline = self._deadline(status)
        if deadline is not None and deadline <= self.now:
            seconds = self.job.spec.run_policy.active_deadline_seconds
            message = f"not ended {seconds} s after its start (runPolicy.activeDeadlineSeconds)"
            reason = names.Reason.DEADLINE_EXCEEDED
            return self._end(status, names.Condition.FAILED, reason, message)
        status = restarts.reattributed(status, sight)
        losses = failure.losses(self.job, sight)
        for loss in losses:
            verdict = policy.judge(self.job, status, loss)
            final = verdict.outcome is policy.Outcome.FAIL
            settling = self.settings.settling
            settles_at = failure.settles_at(self.job, loss, sight, settling, final=final)
            if settles_at is not None and settles_at > self.now:
                return self._go_on(status, sight, events, _earliest(settles_at, deadline))
            match verdict.outcome:
                case policy.Outcome.FAIL:
                    return self._end(status, _FAILED, verdict.reason, verdict.message)
                case policy.Outcome.RESTART:
                    return self._restart(status, loss, losses, verdict)
                case policy.Outcome.IGNORE:
                    status = restarts.ignore(status, loss.replica)
                    message = f"{verdict.message}; training goes on without it"
                    events = (*events, self._warning(verdict.reason, message))
        sight = view.build(self.job, status, self.children)
        return self._go_on(status, sight, events, deadline)

    def _restart(
        self,
        status: job_status.JobStatus,
        loss: failure.Loss,
        losses: tuple[failure.Loss, ...],
        verdict: policy.Verdict,
    ) -> decision.Decision:
        pause = restarts.pause(self.job, status, loss, self.settings.first_pause, self.now)
        reason, message = verdict.reason, verdict.message
        if pause:
            message = f"{message}, after {pause.total_seconds():.0f} s"
        before = view.build(self.job, status, self.children)
        status = counts.count(status, before)
        status = restarts.restart(self.job, status, loss, losses, self.now + pause)
        sight = view.build(self.job, status, self.children)
        status = counts.count(status, sight)
        status = self._condition(status, names.Condition.RESTARTING, True, reason, message)
        if not completion.running(self.job, sight):
            status = self._condition(status, names.Condition.RUNNING, False, reason, message)
        return decision.Decision(
            self._observed(status),
            events=(self._warning(reason, message),),
            deletions=_deletions(sight.stale),
            wake_at=_earliest(status.attempt_time, self._deadline(status)),
        )

    def _go_on(
        self,
        status: job_status.JobStatus,
        sight: view.View,
        events: tuple[decision.Event, ...],
        wake_at: datetime.datetime | None,
    ) -> decision.Decision:
        status = counts.count(status, sight)
        begins_at = status.attempt_time
        if begins_at is not None and begins_at > self.now:
            wake_at = _earliest(wake_at, begins_at)
        was_running = conditions.holds(status, names.Condition.RUNNING)
        runs = completion.running(self.job, sight)
        reason = names.Reason.REPLICAS_RUNNING if runs else names.Reason.REPLICAS_PENDING
        message = _ready_sentence(status)
        status = self._condition(status, names.Condition.RUNNING, runs, reason, message)
        if runs and conditions.holds(status, names.Condition.RESTARTING):
            status = self._condition(status, names.Condition.RESTARTING, False, reason, message)
        if runs and not was_running:
            events = (*events, self._event(reason, message))
        return decision.Decision(
            self._observed(status),
            events=events,
            deletions=_deletions(sight.stale),
            creations=self._creations(status, sight),
            wake_at=wake_at,
        )

    def _creations(
        self, status: job_status.JobStatus, sight: view.View
    ) -> tuple[decision.Manifest, ...]:
        """Build what is missing; a gang begins only when every pod of the one before is gone."""
        manifests = []
        if not self.children.has_service:
            manifests.append(build.service(self.job))
        if not self.children.has_config:
            manifests.append(build.config(self.job, self.settings))
        paused = status.attempt_time is not None and status.attempt_time > self.now
        if paused or any(pod.attempt != status.attempt for pod in sight.stale):
            return tuple(manifests)
        taken = {pod.replica for pod in sight.stale}
        manifests += [
            build.pod(
                self.job,
                replica,
                self.settings,
                attempt=status.attempt,
                replica_attempt=status.replica_attempts.get(replica.name, 0),
                memory_growths=status.replicas[replica.role.value].memory_growths,
            )
            for replica in sight.missing
            if replica not in taken
        ]
        return tuple(manifests)

    def _suspended(self, status: job_status.JobStatus) -> decision.Decision:
        reason, message = names.Reason.JOB_SUSPENDED, "spec.runPolicy.suspend is true"
        was_suspended = conditions.holds(status, names.Condition.SUSPENDED)
        status = conditions.without(status, names.Condition.FAILED)
        for kind in (names.Condition.RUNNING, names.Condition.RESTARTING):
            if conditions.holds(status, kind):
                status = self._condition(status, kind, False, reason, message)
        status = self._condition(status, names.Condition.SUSPENDED, True, reason, message)
        status = counts.count(status, view.build(self.job, status, self.children))
        return decision.Decision(
            self._observed(status),
            events=() if was_suspended else (self._event(reason, message),),
            deletions=_deletions(self.children.pods),
        )

    def _end(
        self,
        status: job_status.JobStatus,
        kind: names.Condition,
        reason: str,
        message: str,
    ) -> decision.Decision:
        """Write the end; pods are cleaned up by the next decision, when the end is on record."""
        for other in (names.Condition.RUNNING, names.Condition.RESTARTING):
            if conditions.holds(status, other):
                done = names.Reason.JOB_FINISHED
                status = self._condition(status, other, False, done, "the job has ended")
        status = self._condition(status, kind, True, reason, message)
        status = status.model_copy(update={"completion_time": self.now})
        sight = view.build(self.job, status, self.children)
        status = counts.count(status, sight)
        succeeded = kind is names.Condition.SUCCEEDED
        event_type = decision.EventType.NORMAL if succeeded else decision.EventType.WARNING
        return decision.Decision(
            self._observed(status),
            events=(decision.Event(event_type, reason, message),),
            wake_at=self.now,
        )

    def _ended(self, status: job_status.JobStatus) -> decision.Decision:
        sight = view.build(self.job, status, self.children)
        status = counts.count(status, sight, ended=True)
        policy = self.job.spec.run_policy
        match policy.clean_pod_policy:
            case types.CleanPodPolicy.NONE:
                doomed: tuple[observation.Pod, ...] = ()
            case types.CleanPodPolicy.RUNNING:
                doomed = tuple(pod for pod in self.children.pods if not pod.phase.ended)
            case types.CleanPodPolicy.ALL:
                doomed = self.children.pods
        expires = None
        if policy.ttl_seconds_after_finished is not None and status.completion_time is not None:
            lifetime = datetime.timedelta(seconds=policy.ttl_seconds_after_finished)
            expires = status.completion_time + lifetime
        over = expires is not None and expires <= self.now
        return decision.Decision(
            self._observed(status),
            deletions=_deletions(doomed),
            delete_job=over,
            wake_at=None if over else expires,
        )

    def _deadline(self, status: job_status.JobStatus) -> datetime.datetime | None:
        seconds = self.job.spec.run_policy.active_deadline_seconds
        if seconds is None or status.start_time is None:
            return None
        return status.start_time + datetime.timedelta(seconds=seconds)

    def _condition(
        self,
        status: job_status.JobStatus,
        kind: names.Condition,
        true: bool,
        reason: str,
        message: str,
    ) -> job_status.JobStatus:
        return conditions.set_condition(
            status,
            kind,
            true=true,
            reason=reason,
            message=message,
            now=self.now,
            generation=self.job.metadata.generation,
        )

    def _observed(self, status: job_status.JobStatus) -> job_status.JobStatus:
        return status.model_copy(update={"observed_generation": self.job.metadata.generation})

    def _event(self, reason: names.Reason, message: str) -> decision.Event:
        return decision.Event(decision.EventType.NORMAL, reason, message)

    def _warning(self, reason: names.Reason, message: str) -> decision.Event:
        return decision.Event(decision.EventType.WARNING, reason, message)


def _earliest(*times: datetime.datetime | None) -> datetime.datetime | None:
    return min((time for time in times if time is not None), default=None)


def _corrected(status: job_status.JobStatus, generation: int) -> bool:
    """Whether the job failed for a spec that has been changed since."""
    failed = conditions.find(status, names.Condition.FAILED)
    return (
        failed is not None
        and failed.reason in _NEVER_RAN
        and failed.observed_generation < generation
    )


def _deletions(pods: tuple[observation.Pod, ...]) -> tuple[decision.Deletion, ...]:
    return tuple(decision.Deletion(pod.name, pod.uid) for pod in pods if not pod.deleting)


def _ready_sentence(status: job_status.JobStatus) -> str:
    waiting = next((c.reason for c in status.replicas.values() if c.reason), "")
    sentence = f"{status.ready} replicas run or have completed"
    return f"{sentence}; {waiting}" if waiting else sentence
