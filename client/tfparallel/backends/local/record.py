"""The records of a run for readers in other processes: its events, and the state of its pods."""

import datetime
import pathlib
from collections.abc import Iterable, Sequence
from typing import Any

import pydantic

from tfparallel import models
from tfparallel.backends.local import folders
from tfparallel_operator.api import names
from tfparallel_operator.core import decision, observation


class Event(pydantic.BaseModel):
    """An event of the job, and when it was written."""

    time: datetime.datetime
    type: decision.EventType
    reason: str
    message: str
    action: names.EventAction = names.EventAction.RECONCILE
    pod: str = ""

    def for_job(self, job_name: str) -> models.Event:
        """Return the event as clusters tell it, of the job with this name."""
        return models.Event(
            time=self.time,
            type=self.type.value,
            reason=self.reason,
            object=f"{names.SINGULAR}/{job_name}",
            message=self.message,
            action=self.action.value,
            pod=self.pod,
        )


class Pod(pydantic.BaseModel):
    """A pod: the process of one replica."""

    name: str
    replica: str
    attempt: int
    phase: observation.Phase
    exit_code: int | None = None
    reason: str = ""
    """How the process ended."""


class PodChange(Pod):
    """A pod when its process started or ended."""

    time: datetime.datetime


_PODS = pydantic.TypeAdapter(tuple[Pod, ...])


def add_event(layout: folders.Folders, event: decision.JobEvent, now: datetime.datetime) -> None:
    """Append an event."""
    line = Event(
        time=now,
        type=event.type,
        reason=event.reason,
        message=event.message,
        action=event.action,
        pod=event.pod,
    )
    with layout.events.open("a", encoding="utf-8") as file:
        file.write(f"{line.model_dump_json()}\n")


def read_events(layout: folders.Folders) -> Sequence[Event]:
    """Return the events of all runs in a folder, oldest first."""
    return tuple(map(Event.model_validate_json, _whole_lines(layout.events)))


def write_pods(layout: folders.Folders, pods: Iterable[observation.Pod]) -> None:
    """Replace the record of the pods."""
    written = tuple(Pod(**_fields(pod)) for pod in pods)
    folders.write_whole(layout.pods, _PODS.dump_json(written, indent=2).decode())


def add_pod_change(layout: folders.Folders, pod: observation.Pod, now: datetime.datetime) -> None:
    """Append the start or the end of a pod's process."""
    with layout.pod_changes.open("a", encoding="utf-8") as file:
        file.write(f"{PodChange(**_fields(pod), time=now).model_dump_json()}\n")


def read_pod_changes(layout: folders.Folders) -> Sequence[PodChange]:
    """Return starts and ends of all pods in a folder, oldest first; none of an older version."""
    return tuple(map(PodChange.model_validate_json, _whole_lines(layout.pod_changes)))


def _fields(pod: observation.Pod) -> dict[str, Any]:
    return {
        "name": pod.name,
        "replica": pod.replica.name,
        "attempt": pod.attempt,
        "phase": pod.phase,
        "exit_code": None if pod.exit is None else pod.exit.code,
        "reason": "" if pod.exit is None else pod.exit.reason,
    }


def _whole_lines(file: pathlib.Path) -> Sequence[str]:
    """Return the complete lines of a file. Text after the last line end is still being written."""
    try:
        return file.read_text(encoding="utf-8").split("\n")[:-1]
    except FileNotFoundError:
        return ()


def read_pods(layout: folders.Folders) -> Sequence[Pod]:
    """Return the pods that exist, as last recorded."""
    try:
        return _PODS.validate_json(layout.pods.read_bytes())
    except FileNotFoundError:
        return ()
