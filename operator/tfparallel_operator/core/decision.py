"""What `decide` returns: values that say what to write, in the order in which to write it."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import job_status, names

Manifest = dict[str, Any]
"""A Kubernetes object as JSON."""


class EventType(enum.StrEnum):
    """Type of an Event: Warning only for what a person must act on."""

    NORMAL = "Normal"
    WARNING = "Warning"


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An Event to emit on the job."""

    type: EventType
    reason: str
    message: str
    action: names.EventAction = names.EventAction.RECONCILE
    pod: str = ""
    """The lost pod that it reports, if any."""


def normal(
    reason: str, message: str, action: names.EventAction = names.EventAction.RECONCILE
) -> Event:
    """Return an Event that asks nobody to act."""
    return Event(EventType.NORMAL, reason, message, action)


def warning(
    reason: str, message: str, action: names.EventAction = names.EventAction.RECONCILE
) -> Event:
    """Return an Event that a person should look at."""
    return Event(EventType.WARNING, reason, message, action)


ObjectType = tuple[str, str]
"""The apiVersion and kind of an object."""

POD: ObjectType = ("v1", "Pod")
CONFIG_MAP: ObjectType = ("v1", "ConfigMap")
CLAIM: ObjectType = ("v1", "PersistentVolumeClaim")
WORKLOAD: ObjectType = ("kueue.x-k8s.io/v1beta2", "Workload")
"""The newest version; the engine writes the one that the API server serves."""


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """Fields of an object to write, conditional on its uid; None removes one."""

    type: ObjectType
    name: str
    uid: str
    fields: Mapping[str, Any]
    version: str | None = None
    """Its resource version, where the change must not meet another one."""
    subresource: str = ""
    """`status`, where the fields are of the status."""


@dataclasses.dataclass(frozen=True, slots=True)
class Deletion:
    """A pod, or another object, to delete, conditional on its uid."""

    name: str
    uid: str
    type: ObjectType = POD
    force_from: str | None = None
    """The node that has not ended the pod long after its grace: when that is dead, the pod's name
    is freed without it."""


@dataclasses.dataclass(frozen=True, slots=True)
class GroupWrites:
    """Writes of the object that decides when a job's pods start: its PodGroup or Workload."""

    creations: tuple[Manifest, ...] = ()
    changes: tuple[Change, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    pods_wait: bool = False
    """Whether no pod may be created, because the object that it would name is not the right one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Decision:
    """What to write for one job.

    Carried out in this order, up to the first refusal: the status, the Events of that change,
    deletions, changes, creations. The status is the write-ahead of all that follows: it is written
    when it differs from the job's, conditional on resourceVersion. After each step a new
    observation leads to the rest of the same steps, so it does not matter where the operator dies.

    The pods of a new job come before its first status: see `core.life.start`.
    """

    status: job_status.JobStatus
    events: tuple[Event, ...] = ()
    deletions: tuple[Deletion, ...] = ()
    changes: tuple[Change, ...] = ()
    creations: tuple[Manifest, ...] = ()
    """What pods need, such as the Service and a PodGroup, comes before them."""
    creates_first: bool = False
    """Whether the creations come before the status, which is left to the next decision."""
    notices: tuple[Event, ...] = ()
    """Events that go with no change of the status."""
    delete_job: bool = False
    """The job's time to live is over."""
    wake_at: datetime.datetime | None = None
    """When to decide again though nothing happens."""
