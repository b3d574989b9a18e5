"""The result of `decide`: what to write, in the order of the writes."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import job_status, names

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


class EventType(enum.StrEnum):
    """Type of an Event. Warning is only for events on which a person must act."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclasses.dataclass(frozen=True, slots=True)
class JobEvent:
    """An Event to emit on the job."""

    type: EventType
    reason: str
    message: str
    action: names.EventAction = names.EventAction.RECONCILE
    pod: str = ""
    """The lost pod that it reports, if any."""


def normal(
    reason: str, message: str, action: names.EventAction = names.EventAction.RECONCILE
) -> JobEvent:
    """Return an Event that needs no action."""
    return JobEvent(EventType.NORMAL, reason, message, action)


def warning(
    reason: str, message: str, action: names.EventAction = names.EventAction.RECONCILE
) -> JobEvent:
    """Return an Event on which a person should act."""
    return JobEvent(EventType.WARNING, reason, message, action)


ObjectType = tuple[str, str]
"""The apiVersion and kind of an object."""

POD: ObjectType = ("v1", "Pod")
CONFIG_MAP: ObjectType = ("v1", "ConfigMap")
CLAIM: ObjectType = ("v1", "PersistentVolumeClaim")
WORKLOAD: ObjectType = ("kueue.x-k8s.io/v1beta2", "Workload")
"""The newest version. The engine writes the version that the API server serves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """Fields of an object to write, conditional on its uid. The value None removes a field."""

    type: ObjectType
    name: str
    uid: str
    fields: Mapping[str, Any]
    version: str | None = None
    """The object's resource version, if the write must fail after another change."""
    subresource: str = ""
    """`status` if the fields belong to the status, else empty."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deletion:
    """A pod, or another object, to delete, conditional on its uid."""

    name: str
    uid: str
    type: ObjectType = POD
    force_from: str | None = None
    """The node that should have ended the pod long ago.

    If the node is dead, the operator force-deletes the pod, which frees the pod's name.
    """


@dataclasses.dataclass(frozen=True, slots=True)
class GroupWrites:
    """Writes of the object that decides when a job's pods start: its PodGroup or its Workload."""

    creations: tuple[Manifest, ...] = ()
    changes: tuple[Change, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    pods_wait: bool = False
    """Whether the operator must create no pod, because the existing object is not the right one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """Everything to write for one job.

    The engine writes in this order, up to the first refusal: the status, the Events of that change,
    deletions, changes, creations. The status is written ahead of all writes that follow from it: it
    is written if it differs from the job's, conditional on resourceVersion. After each write, a new
    observation leads to the remaining writes. So the operator may die after any of them. The pods
    of a new job come before its first status: see `core.life.start`.
    """

    status: job_status.JobStatus
    events: tuple[JobEvent, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    changes: tuple[Change, ...] = ()
    creations: tuple[Manifest, ...] = ()
    """Objects that pods need, such as the Service and a PodGroup, come before the pods."""
    creates_first: bool = False
    """Whether the creations come first, and the next decision writes the status."""
    notices: tuple[JobEvent, ...] = ()
    """Events that do not depend on a change of the status."""
    delete_job: bool = False
    """Whether to delete the job, because its time to live is over."""
    wake_at: datetime.datetime | None = None
    """When to decide again, even if nothing happens."""
