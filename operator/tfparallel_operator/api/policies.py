"""Policies of a job for lost replicas, for memory, and for the clean-up after its end."""

import enum
from typing import Annotated

import pydantic

from tfparallel_operator.api import role, spec_rules
from tfparallel_trainer.contract import base


class Cause(enum.StrEnum):
    """Why a replica was lost."""

    DISRUPTION = "Disruption"
    """The pod was deleted or evicted, its node was lost, or its program asked to run again."""
    INFRASTRUCTURE = "Infrastructure"
    """The node rejected the pod before anything ran in it, or packages cannot be downloaded."""
    OUT_OF_MEMORY = "OutOfMemory"
    RETRYABLE_EXIT = "RetryableExit"
    PERMANENT_EXIT = "PermanentExit"
    """It exited with a code that a restart would repeat."""
    STALL = "Stall"
    """The pods ran, and training made no step for too long."""
    PENDING_TOO_LONG = "PendingTooLong"

    @property
    def bounded(self) -> bool:
        """Whether restarts for it count against backoffLimit, as the job's own failures do."""
        return self not in (Cause.DISRUPTION, Cause.INFRASTRUCTURE)


class Action(enum.StrEnum):
    """What the operator does after a replica is lost."""

    RESTART_GANG = "RestartGang"
    RESTART_REPLICA = "RestartReplica"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


class CleanupWhen(enum.StrEnum):
    """After which end of a job a stage of its clean-up runs."""

    ENDED = "Ended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"


class CleanupTarget(enum.StrEnum):
    """What a stage of the clean-up deletes."""

    RUNNING_PODS = "RunningPods"
    PODS = "Pods"
    JOB = "Job"


ExitCode = Annotated[int, pydantic.Field(ge=1, le=255)]


class FailureRule(base.Model):
    """A rule for lost replicas. An empty field matches every loss."""

    roles: Annotated[tuple[role.Role, ...], pydantic.Field(max_length=len(role.Role))] = ()
    """The roles that match; empty: every role."""

    exit_codes: Annotated[tuple[ExitCode, ...], pydantic.Field(max_length=64)] = ()
    """The exit codes of the container tensorflow that match; empty: any, and pods without an exit
    code."""

    causes: Annotated[tuple[Cause, ...], pydantic.Field(max_length=len(Cause))] = ()
    """The causes that match; empty: every cause."""

    action: Action
    """RestartGang: restart all replicas. RestartReplica: restart the lost one alone. FailJob: fail
    the job. Ignore: continue training without it."""


class FailurePolicy(base.Model):
    """Rules for lost replicas, which take precedence over the strategy and restartPolicy."""

    rules: Annotated[
        tuple[Annotated[FailureRule, spec_rules.FAILURE_RULES], ...],
        pydantic.Field(min_length=1, max_length=16),
    ]
    """The first rule that matches a loss applies. If none does, the strategy decides."""


class OutOfMemory(base.Model):
    """How memory grows before a replica that ran out of it restarts."""

    growth_percent: Annotated[int, pydantic.Field(ge=10, le=900)] = 100
    """Percent by which the memory request and limit grow each time."""

    max_memory: Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$")]
    """The quantity beyond which they do not grow, such as 64Gi."""


class CleanupStage(base.Model):
    """A deletion some time after the job has ended."""

    when: CleanupWhen = CleanupWhen.ENDED
    """The end after which it runs: Ended (both), Succeeded or Failed."""

    after_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 0
    """Seconds after the end."""

    delete: CleanupTarget
    """RunningPods: pods that are running or pending. Pods: all pods, with their logs. Job: the job
    and its objects."""
