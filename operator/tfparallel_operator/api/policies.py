"""What a job says of losses of its replicas, and of what is left when it has ended."""

import enum
from typing import Annotated

import pydantic

from tfparallel_operator.api import role, spec_rules
from tfparallel_trainer.contract import base


class Cause(enum.StrEnum):
    """Why a replica was lost."""

    DISRUPTION = "Disruption"
    """The cluster or a person took the pod, its node was lost, or its program asked for it."""
    INFRASTRUCTURE = "Infrastructure"
    """The node turned the pod away before anything ran in it, or packages cannot be downloaded."""
    OUT_OF_MEMORY = "OutOfMemory"
    RETRYABLE_EXIT = "RetryableExit"
    PERMANENT_EXIT = "PermanentExit"
    """It ended with an exit code that running it again would lead to again."""
    STALL = "Stall"
    """Training made no step for too long while pods ran."""
    PENDING_TOO_LONG = "PendingTooLong"

    @property
    def bounded(self) -> bool:
        """Whether restarts for it count against backoffLimit: it is the job's own doing."""
        return self not in (Cause.DISRUPTION, Cause.INFRASTRUCTURE)


class Action(enum.StrEnum):
    """What the loss of a replica leads to."""

    RESTART_GANG = "RestartGang"
    RESTART_REPLICA = "RestartReplica"
    FAIL_JOB = "FailJob"
    IGNORE = "Ignore"


class CleanupWhen(enum.StrEnum):
    """Which end of a job a stage of its clean-up follows."""

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
    """What losses of one kind lead to. What is left out matches every loss."""

    roles: Annotated[tuple[role.Role, ...], pydantic.Field(max_length=len(role.Role))] = ()
    """The roles whose replicas are meant; empty: every role."""

    exit_codes: Annotated[tuple[ExitCode, ...], pydantic.Field(max_length=64)] = ()
    """The exit codes of the container tensorflow that are meant; empty: any, and none."""

    causes: Annotated[tuple[Cause, ...], pydantic.Field(max_length=len(Cause))] = ()
    """The causes that are meant; empty: every cause."""

    action: Action
    """RestartGang: all replicas run again. RestartReplica: the lost one alone. FailJob: the job
    fails. Ignore: training goes on without it."""


class FailurePolicy(base.Model):
    """Rules that go before what the strategy and restartPolicy say."""

    rules: Annotated[
        tuple[Annotated[FailureRule, spec_rules.FAILURE_RULES], ...],
        pydantic.Field(min_length=1, max_length=16),
    ]
    """The first rule that matches a loss decides what it leads to; without a match the strategy
    does."""


class OutOfMemory(base.Model):
    """How a replica that ran out of memory is run again."""

    growth_percent: Annotated[int, pydantic.Field(ge=10, le=900)] = 100
    """By how much request and limit of memory grow each time."""

    max_memory: Annotated[str, pydantic.Field(pattern=r"^[1-9][0-9]*(k|M|G|T|Ki|Mi|Gi|Ti)?$")]
    """They do not grow beyond this quantity, such as 64Gi."""


class CleanupStage(base.Model):
    """What is deleted some time after the job has ended."""

    when: CleanupWhen = CleanupWhen.ENDED
    """Which end it follows: Ended (both), Succeeded or Failed."""

    after_seconds: Annotated[int, pydantic.Field(ge=0, le=2**31 - 1)] = 0
    """Seconds after the end."""

    delete: CleanupTarget
    """RunningPods: pods that still run or wait. Pods: all, with their logs. Job: everything."""
