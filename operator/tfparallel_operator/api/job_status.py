"""The status of a TFParallelJob: what was observed and decided, bounded in size at any scale."""

import datetime
import enum
from typing import Annotated, Any, NamedTuple, Self, TypeVar

import pydantic

from tfparallel_operator.api import names
from tfparallel_trainer.contract import (
    agents,
    base,
    job_file,
    limits,
)
from tfparallel_trainer.contract.progress import (
    FittingChange,
    MemoryPlan,
    Placement,
    Progress,
    Report,
    RunSeconds,
    StagePlacement,
)
from tfparallel_trainer.contract.separate_training import SeparateTraining
from tfparallel_trainer.contract.verification import Comparison, Verification

_TEXT = pydantic.WithJsonSchema({"type": "string", "maxLength": 316})
"""The schema of a word that another version of the operator may add to: any text."""

_EITHER = pydantic.Field(union_mode="left_to_right")
_ConditionType = Annotated[names.ConditionType | str, _TEXT, _EITHER]
_State = Annotated[names.State | str, _TEXT, _EITHER]
_Activity = Annotated[names.Activity | str, _TEXT, _EITHER]


LAST_INDEX = 9_999
"""Of a replica, in the ranges of a status; more than a job may have."""


def _check_indices(text: str) -> str:
    """Refuse (ValueError) ranges that are not in ascending order, or larger than any job's."""
    following = 0
    for part in text.split(",") if text else ():
        first, _, last = part.partition("-")
        numbers = (first, last or first)
        if not all(number.isdecimal() and len(number) <= 4 for number in numbers):
            raise ValueError(f"write ranges of indices up to {LAST_INDEX}, such as 0-3,7")
        begin, end = map(int, numbers)
        if not following <= begin <= end:
            raise ValueError("write ranges of indices in ascending order, such as 0-3,7")
        following = end + 1
    return text


_Indices = Annotated[str, pydantic.AfterValidator(_check_indices)]


R = TypeVar("R")


def _read_or_drop(value: object, read: pydantic.ValidatorFunctionWrapHandler) -> Any:
    """Read what a pod has reported; what is outside the limits of this version counts as none."""
    try:
        return read(value)
    except pydantic.ValidationError:
        return None


Reported = Annotated[R | None, pydantic.WrapValidator(_read_or_drop)]
"""A part of the status that a pod decides: no report keeps a job from being decided on."""


class _Observed(base.Model):
    """An older operator keeps the fields that a newer one has written.

    A status is never refused for what it has in addition, and a decision writes it back.
    """

    model_config = pydantic.ConfigDict(extra="allow")


def _to_utc(time: datetime.datetime) -> datetime.datetime:
    """Refuse (ValueError) a time that its zone moves out of all years; the API server stores it."""
    try:
        return time.astimezone(datetime.UTC)
    except OverflowError:
        raise ValueError("the time is before year 1 or after year 9999") from None


Time = Annotated[datetime.datetime, pydantic.AfterValidator(_to_utc)]
"""A moment, in UTC."""


class Truth(enum.StrEnum):
    """A condition's status."""

    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


class Condition(_Observed):
    """One condition, as the Kubernetes API conventions define it."""

    type: _ConditionType
    """One of docs/reference/reasons.md#conditions."""
    status: Truth
    reason: Annotated[str, pydantic.Field(max_length=1024)]
    """One of docs/reference/reasons.md#reasons."""
    message: Annotated[str, pydantic.Field(max_length=32_768)] = ""
    """One sentence for people; with a remedy, `problem` and `remedy`."""
    problem: str | None = None
    """What is the matter, if the message has a remedy too."""
    remedy: str | None = None
    """What to do about it."""
    last_transition_time: Time
    """When the status last changed."""
    observed_generation: int = 0
    """The generation of the spec that this was decided for."""


class LastExit(_Observed):
    """How a replica ended that did not succeed."""

    replica: str
    """Its pod's name."""
    code: int
    """Exit code of the container tensorflow; -1 when the pod never ran it."""
    reason: str = ""
    """The kubelet's reason, such as Error or OOMKilled, or the meaning of the code."""
    time: Time | None = None
    """When it ended."""


class Failure(_Observed):
    """The loss of a replica."""

    replica: str
    """Its pod's name."""
    cause: str
    """One of the causes of `restartCauses`."""
    exit_code: int | None = None
    """Exit code of its container, if that exited."""
    remedy: str = ""
    """What to do about it, if known."""


class Hang(_Observed):
    """Where training hung."""

    replica: str
    """The pod that reported it."""
    after: str
    """Its last sign of life, such as "step 7"."""
    stack: str
    """The calls of its main thread, the innermost first."""


class Waiting(_Observed):
    """Why a pod waits."""

    pod: str
    """Its name."""
    reason: str
    """Why, in the scheduler's or kubelet's words."""
    remedy: str = ""
    """What to do about it, if known."""


class ReplicaStatus(_Observed):
    """The replicas of one role, counted."""

    desired: int = 0
    """How many there are to be."""
    pending: int = 0
    """How many have a pod that waits, or none yet."""
    running: int = 0
    """How many run."""
    succeeded: int = 0
    """How many ended with success; `completed` says which."""
    failed: int = 0
    """How many have a pod that failed."""
    terminating: int = 0
    """How many pods are being deleted."""
    completed: _Indices = ""
    """Which replicas ended with success: indices from 0 as ranges, such as 0-3,7, and no count.
    They stay completed when their pods vanish."""
    seen: _Indices = ""
    """Which replicas had a pod of this attempt, as indices. One that is missing was lost."""
    ignored: _Indices = ""
    """Which lost replicas training continues without, as indices."""
    memory_growths: int = 0
    """How often the operator has raised the role's memory after a replica ran out of it."""
    reason: str = ""
    """Why replicas wait: the pod and the reason of `waiting`."""
    waiting: Waiting | None = None
    """The pod that says most about why replicas wait."""
    last_exit: LastExit | None = None
    """The newest exit that was not a success."""


class Restarts(_Observed):
    """Restarts so far, by cause."""

    failure: int = 0
    """Restarts after the job's own failures: bounded by backoffLimit."""
    disruption: int = 0
    """Restarts after pods were deleted, evicted, lost or turned away by their node, or asked to run
    again: not bounded."""


class RunSecondsStatus(RunSeconds, _Observed):
    """Where the time of the coordinator's process went since its first step ended. Whole seconds,
    whose sum is that time."""


class ProgressStatus(Progress, _Observed):
    """The latest report of the coordinator."""

    seconds: RunSecondsStatus | None = None
    """Where the time went since the first step of this attempt."""
    last_update_time: Time | None = None
    """When the report arrived."""


class MeshStatus(job_file.Mesh, _Observed):
    """The current mesh."""


class StagePlacementStatus(StagePlacement, _Observed):
    """One stage: where it runs, and what it holds."""


class FittingChangeStatus(FittingChange, _Observed):
    """One change of the job with which its model would fit its devices."""


class MemoryPlanStatus(MemoryPlan, _Observed):
    """What the fullest device of a split model is expected to hold."""

    changes: Annotated[
        tuple[FittingChangeStatus, ...], pydantic.Field(max_length=limits.MAX_FITTING_CHANGES)
    ] = ()


class PlacementStatus(Placement, _Observed):
    """Where the parts of a model that is split are."""

    mesh: MeshStatus
    stages: Annotated[
        tuple[StagePlacementStatus, ...], pydantic.Field(max_length=limits.MAX_STAGES)
    ] = ()
    memory: MemoryPlanStatus | None = None


class ComparisonStatus(Comparison, _Observed):
    """How closely a quantity matches one process."""


class VerificationStatus(Verification, _Observed):
    """Results of the comparisons of `trainer.verify` with one process."""

    compared: Annotated[
        tuple[ComparisonStatus, ...], pydantic.Field(max_length=limits.MAX_QUANTITIES)
    ] = ()


class SeparateTrainingStatus(SeparateTraining, _Observed):
    """That the replicas of a script train models of their own, as the coordinator saw it."""

    last_update_time: Time
    """When the report arrived."""


class GoodputStatus(_Observed):
    """Where the time of a job went, up to the moment `since`."""

    phase: _Activity | None = None
    """What the job does from then on. Reports of progress divide the time from there. Absent if the
    job has ended."""
    since: Time
    """When the phase began."""
    seconds: dict[str, int] = pydantic.Field(default_factory=dict)
    """Seconds by activity, from the job's creation until then."""


class HostPorts(_Observed):
    """Ports of nodes that are set aside for a job."""

    first: int
    """The first one; the others follow it."""
    count: int
    """How many there are: one for each replica."""


class InPlaceStatus(_Observed):
    """That pods of earlier attempts train in a later one: a restart in place."""

    attempt: int
    """The later attempt. In all others, the pods of earlier ones do not train."""
    pods_since: int
    """The oldest attempt of these pods."""


class JobStatus(_Observed):
    """The observed state of a job."""

    state: _State | None = None
    """One word for people, derived from the conditions."""
    conditions: Annotated[
        tuple[Condition, ...],
        pydantic.Field(
            json_schema_extra={
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
            }
        ),
    ] = ()
    observed_generation: int = 0
    """The generation of the spec that the status describes."""
    strategy: str = ""
    """The current strategy, given or inferred."""
    attempt: int = 0
    """Number of the attempt that runs, from 1; 0 before the first."""
    replica_attempts: dict[str, int] = pydantic.Field(default_factory=dict)
    """Restarts within the attempt of replicas that were restarted alone: worker-3 to 2."""
    in_place: InPlaceStatus | None = None
    """The latest restart in place: which pods of earlier attempts train in the attempt."""
    replica_pods_since: dict[str, int] = pydantic.Field(default_factory=dict)
    """Replicas that were restarted alone in the pod that they had, with the restart for which it
    was created: worker-3 to 0."""
    attempt_time: Time | None = None
    """When the attempt, or the latest restart within it, begins: pods are not created before."""
    restarts: Restarts = pydantic.Field(default_factory=Restarts)
    restart_count: int = 0
    """All restarts so far, which `kubectl get` shows: the sum of `restarts`."""
    restart_causes: dict[str, int] = pydantic.Field(default_factory=dict)
    """Restarts by cause: Disruption, Infrastructure, OutOfMemory, RetryableExit, PermanentExit,
    Stall, PendingTooLong."""
    restarts_since_progress: int = 0
    """Restarts since training last made progress: the more, the longer the next one waits."""
    last_cause: str = ""
    """The cause of the restart that the attempt began with; empty when it began otherwise."""
    failure: Failure | None = None
    """The loss for which the job restarts, has stalled or has failed."""
    node_losses: dict[str, int] = pydantic.Field(default_factory=dict)
    """Losses by node for which the node may be at fault. From the second one on, new pods avoid the
    node."""
    hang: Hang | None = None
    """Where training hung last (exit code 79). A second hang there fails the job."""
    start_time: Time | None = None
    """When the job started, or was resumed."""
    completion_time: Time | None = None
    """When the job ended."""
    ready: str = ""
    """Running or completed replicas of all replicas: 2/3."""
    workers: int | None = None
    """Current number of workers, which `kubectl scale` shows. The spec may already ask for another
    one."""
    host_ports: HostPorts | None = None
    """With hostNetwork: the ports that the replicas listen on."""
    selector: str = ""
    """Labels of the workers' pods, for the scale subresource."""
    replicas: dict[str, ReplicaStatus] = pydantic.Field(default_factory=dict)
    """The replicas by role."""
    goodput: GoodputStatus | None = None
    """Where the time of the job went."""
    progress: Reported[ProgressStatus] = None
    """How far training has come, as the coordinator reports it."""
    placement: Reported[PlacementStatus] = None
    """Where the parts of the model are, with strategy ModelSplit, as the coordinator reports it."""
    verification: Reported[VerificationStatus] = None
    """How closely training matches one process (`trainer.verify`), as the coordinator reports
    it."""
    separate_training: Reported[SeparateTrainingStatus] = None
    """That the replicas of a script train models of their own, as the coordinator reports it."""

    @property
    def pods_since(self) -> int | None:
        """The oldest attempt whose pods train in this one; None: no pod has stayed for it.

        An older operator begins attempts, and leaves `in_place` as it is.
        """
        if self.in_place is None or self.in_place.attempt != self.attempt:
            return None
        return self.in_place.pods_since

    @property
    def pod_attempts(self) -> range:
        """The attempts whose pods may train in this one: itself, and those whose pods stayed."""
        since = self.pods_since
        return range(self.attempt if since is None else since, self.attempt + 1)

    def find_run(self, replica: str) -> agents.Run:
        """Return the latest run of a replica, such as worker-3."""
        return agents.Run(
            attempt=self.attempt, replica_attempt=self.replica_attempts.get(replica, 0)
        )

    @pydantic.model_validator(mode="after")
    def _sum_restarts(self) -> Self:
        """Count the restarts of a status that an older operator has written."""
        object.__setattr__(self, "restart_count", self.restarts.failure + self.restarts.disruption)
        return self


class Reports(NamedTuple):
    """The parts of a status that a coordinator reports, as the fields are called."""

    progress: ProgressStatus | None
    placement: PlacementStatus | None
    verification: VerificationStatus | None
    separate_training: SeparateTrainingStatus | None


def of_report(report: Report, arrived_at: datetime.datetime) -> Reports:
    """Return what a status shows of a report.

    Args:
        report: what the coordinator sent.
        arrived_at: when it arrived.
    """
    fields = report.model_dump()
    placement, verified = fields.pop("placement"), fields.pop("verification")
    separate = fields.pop("separate_training")
    before_first_step = fields.pop("before_first_step")
    if separate is not None:
        return Reports(
            None, None, None, SeparateTrainingStatus(**separate, last_update_time=arrived_at)
        )
    return Reports(
        None if before_first_step else ProgressStatus(**fields, last_update_time=arrived_at),
        None if placement is None else PlacementStatus.model_validate(placement),
        None if verified is None else VerificationStatus.model_validate(verified),
        None,
    )
