"""Why a pod waits, where its status does not say: the words of Events and claims. Pure.

The operator and the client look at the same objects, so both say the same.
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
"""Words of the scheduler that name no claim."""

_PULL = re.compile(r'(?:ErrImagePull|ImagePullBackOff)(?:: Back-off pulling image "[^"]*")?')
"""What the kubelet says of an image between two tries: the registry's sentence is in Events."""

_PROGRESS = ("WaitForFirstConsumer", "WaitForPodScheduled", "Provisioning")
"""Reasons of Events of a claim that waits for its pod, or that a provisioner works on."""

UNREMARKABLE = frozenset({"", "ContainerCreating", "PodInitializing"})
"""Waiting reasons that every pod passes through: the cause, if any, is in Events alone."""

_EPOCH = datetime.datetime.fromtimestamp(0, datetime.UTC)

_LONGEST_NOTE = 2_048
"""Letters of an Event's note that are read: events of core/v1 may have any number."""


@dataclasses.dataclass(frozen=True, slots=True)
class Event:
    """Something that Kubernetes or the operator reported of a job or of one of its objects."""

    time: datetime.datetime
    type: str
    """Normal or Warning."""
    reason: str
    object: str
    """Kind and name, such as pod/digits-chief-0."""
    message: str
    count: int = 1
    action: str = ""
    """Of the operator's Events: a value of `names.EventAction`."""
    pod: str = ""
    """Of the operator's Events: the lost pod that it reports."""


@dataclasses.dataclass(frozen=True, slots=True)
class Claim:
    """A PersistentVolumeClaim that a job uses."""

    name: str
    phase: str
    """Pending, Bound or Lost."""
    storage_class: str | None
    """None: it names none, and the cluster has no default."""
    access_modes: tuple[str, ...]

    @property
    def is_bound(self) -> bool:
        """Whether it has a volume."""
        return self.phase == "Bound"


@dataclasses.dataclass(frozen=True, slots=True)
class WaitingPod:
    """A pod that waits, and what its status says of it."""

    name: str
    reason: str
    """Of the kubelet or the scheduler; empty: they say nothing."""
    node: str
    created: datetime.datetime | None = None
    """None: no Event is of an earlier pod of the name."""

    @property
    def lacks_cause(self) -> bool:
        """Whether the cause, if any, is in Events or claims alone."""
        return lacks_cause(self.reason, bool(self.node))

    def find_words(self, events: Iterable[Event], claims: Iterable[Claim]) -> str:
        """Return the words that name the cause: of a claim, of the status or of an Event.

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
        """Return the cluster's warnings about the pod, since it exists: names are used again."""
        return [
            event
            for event in of_object(events, "pod", self.name)
            if event.type == "Warning" and (self.created is None or event.time >= self.created)
        ]


@functools.lru_cache(maxsize=256)
def lacks_cause(reason: str, has_node: bool) -> bool:
    """Whether the cause of a pod with these words, if any, is in Events or claims alone."""
    is_of_volumes = not has_node and _VOLUMES.search(reason)
    return bool(not reason or _PULL.fullmatch(reason) or is_of_volumes)


def weigh(reason: str, node: str) -> tuple[bool, bool, bool, bool]:
    """Return a key that puts the pod first whose words say most about why a job waits.

    What the kubelet complains of does not pass by itself, as a lack of room may.
    """
    lacks = lacks_cause(reason, bool(node))
    return not reason, remedies.is_held_by_others(reason), lacks, not node


def of_object(events: Iterable[Event], kind: str, name: str) -> list[Event]:
    """Return the Events of one object."""
    return [event for event in events if event.object == f"{kind}/{name}"]


def _describe(claim: Claim, events: Sequence[Event]) -> str:
    """Return why a claim has no volume; empty: nobody says."""
    subject = f'persistentvolumeclaim "{claim.name}"'
    if claim.phase == "Lost":
        return f"{subject} is Lost: its volume no longer exists"
    if claim.storage_class is None:
        return f"{subject} names no StorageClass, and the cluster has no default"
    claim_events = of_object(events, "persistentvolumeclaim", claim.name)
    causes = [event for event in claim_events if event.reason not in _PROGRESS]
    return f"{subject}: {causes[-1].reason}: {causes[-1].message}" if causes else ""


def parse_claim(body: Mapping[str, Any]) -> Claim:
    """Return a claim."""
    spec = body.get("spec") or {}
    return Claim(
        name=body["metadata"]["name"],
        phase=(body.get("status") or {}).get("phase", "Pending"),
        storage_class=spec.get("storageClassName"),
        access_modes=tuple(spec.get("accessModes") or ()),
    )


def parse_events(bodies: Iterable[Mapping[str, Any]]) -> list[Event]:
    """Return Events, oldest first.

    Some components write fractions of a second and others do not: within a second, the order of the
    writes counts.
    """
    in_order = sorted(bodies, key=lambda body: int(body["metadata"]["resourceVersion"]))
    return sorted(map(parse_event, in_order), key=lambda event: event.time.replace(microsecond=0))


def parse_event(body: Mapping[str, Any]) -> Event:
    """Return an Event of events.k8s.io/v1."""
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
