"""Finds in Events and claims why a pod waits, if its status does not say so. Pure.

The operator and the client look at the same objects, so both give the same reason.
"""

import dataclasses
import datetime
import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfparallel_operator.core import observation, remedies

_VOLUMES = re.compile(
    r"unbound immediate PersistentVolumeClaims|binding volumes|VolumeBinding"
    r"|didn't find available persistent volumes"
)
"""Messages of the scheduler that do not name the claim."""

_PULL = re.compile(r'(?:ErrImagePull|ImagePullBackOff)(?:: Back-off pulling image "[^"]*")?')
"""The kubelet's reason between two pulls of an image. The registry's message is in Events."""

_PROGRESS = ("WaitForFirstConsumer", "WaitForPodScheduled", "Provisioning")
"""Reasons of Events of a claim that waits for its pod, or that a provisioner works on."""

UNREMARKABLE = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons of every pod. The cause, if any, is only in Events."""

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)

_LONGEST_NOTE = 2_048
"""Maximum number of characters that are read of an Event's note, which core/v1 does not limit."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """An Event of Kubernetes or the operator about a job or one of its objects."""

    time: datetime.datetime
    type: str
    """Normal or Warning."""
    reason: str
    object: str
    """Kind and name, such as pod/digits-chief-0."""
    message: str
    count: int = 1
    action: str = ""
    """In Events of the operator: a value of `names.EventAction`."""
    pod: str = ""
    """In Events of the operator: the lost pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim that a job uses."""

    name: str
    phase: str
    """Pending, Bound or Lost."""
    storage_class: str | None
    """The StorageClass; None: the claim names none, and the cluster has no default."""
    access_modes: tuple[str, ...]

    @property
    def is_bound(self) -> bool:
        """Whether the claim has a volume."""
        return self.phase == "Bound"


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits, with the reason in its status."""

    name: str
    reason: str
    """The message of the kubelet or the scheduler; empty: neither has written one."""
    node: str
    created: datetime.datetime | None = None
    """When the pod was created; None: no Event belongs to an earlier pod of that name."""

    @property
    def lacks_cause(self) -> bool:
        """Whether the cause, if any, is only in Events or claims."""
        return lacks_cause(self.reason, bool(self.node))

    def find_words(self, events: Iterable[Event], claims: Iterable[Claim]) -> str:
        """Return the message that names the cause: that of a claim, of the status or of an Event.

        Args:
            events: oldest first.
            claims: those that the pod mounts.
        """
        events = tuple(events)
        if not self.node and self.lacks_cause:
            causes = (_describe(claim, events) for claim in claims if not claim.is_bound)
            if cause := next(filter(None, causes), ""):
                return cause
        warnings = self.list_warnings(events)
        if _PULL.fullmatch(self.reason):
            pulls = [event.message for event in warnings if "Failed to pull image" in event.message]
            return f"{self.reason.partition(':')[0]}: {pulls[-1]}" if pulls else self.reason
        if not self.reason and warnings:
            return f"{warnings[-1].reason}: {warnings[-1].message}"
        return self.reason

    def list_warnings(self, events: Iterable[Event]) -> list[Event]:
        """Return the warnings about the pod since its creation, because names are used again."""
        return [
            event
            for event in of_object(events, "pod", self.name)
            if event.type == "Warning" and (self.created is None or event.time >= self.created)
        ]


@functools.lru_cache(maxsize=256)
def lacks_cause(reason: str, has_node: bool) -> bool:
    """Whether the cause is only in Events or claims, given the message in the pod's status."""
    is_of_volumes = not has_node and _VOLUMES.search(reason)
    return bool(not reason or _PULL.fullmatch(reason) or is_of_volumes)


def weigh(reason: str, node: str) -> tuple[bool, bool, bool, bool]:
    """Return a key that sorts the pod first whose message explains best why a job waits.

    A complaint of the kubelet does not pass by itself, as a lack of room may.
    """
    lacks = lacks_cause(reason, bool(node))
    return not reason, remedies.is_held_by_others(reason), lacks, not node


def of_object(events: Iterable[Event], kind: str, name: str) -> list[Event]:
    """Return the Events of one object."""
    return [event for event in events if event.object == f"{kind}/{name}"]


def _describe(claim: Claim, events: Sequence[Event]) -> str:
    """Return why a claim has no volume; empty: unknown."""
    subject = f'persistentvolumeclaim "{claim.name}"'
    if claim.phase == "Lost":
        return f"{subject} is Lost: its volume no longer exists"
    if claim.storage_class is None:
        return f"{subject} names no StorageClass, and the cluster has no default"
    claim_events = of_object(events, "persistentvolumeclaim", claim.name)
    causes = [event for event in claim_events if event.reason not in _PROGRESS]
    return f"{subject}: {causes[-1].reason}: {causes[-1].message}" if causes else ""


def parse_claim(body: Mapping[str, Any]) -> Claim:
    """Convert a claim."""
    spec = body.get("spec") or {}
    return Claim(
        name=body["metadata"]["name"],
        phase=(body.get("status") or {}).get("phase", "Pending"),
        storage_class=spec.get("storageClassName"),
        access_modes=tuple(spec.get("accessModes") or ()),
    )


def parse_events(bodies: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Convert Events, and sort them by age, oldest first.

    Some components write fractions of a second and others do not. Within a second, the order of the
    writes counts.
    """
    in_order = sorted(bodies, key=lambda body: int(body["metadata"]["resourceVersion"]))
    return sorted(map(parse_event, in_order), key=lambda event: event.time.replace(microsecond=0))


def parse_event(body: Mapping[str, Any]) -> Event:
    """Convert an Event of events.k8s.io/v1."""
    series, regarding = body.get("series") or {}, body.get("regarding") or {}
    moments = (
        series.get("lastObservedTime"),
        body.get("deprecatedLastTimestamp"),
        body.get("eventTime"),  # of the first one, with fractions of a second
    )
    created = observation.parse_time(body["metadata"].get("creationTimestamp")) or _EPOCH
    return Event(
        time=max(filter(None, map(observation.parse_time, moments)), default=created),
        type=body.get("type", "Normal"),
        reason=body.get("reason", ""),
        object=f"{regarding.get('kind', '').lower()}/{regarding.get('name', '')}",
        message=" ".join((body.get("note") or "")[:_LONGEST_NOTE].split()),
        count=series.get("count") or body.get("deprecatedCount") or 1,
        action=body.get("action") or "",
        pod=(body.get("related") or {}).get("name") or "",
    )
