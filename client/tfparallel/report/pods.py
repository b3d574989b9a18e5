"""The processes of a job's pods in a cluster, those of pods that are gone too. Pure.

A restart deletes all pods of an attempt. Only Events of scheduler and kubelet record them then,
until the API server drops those too.
"""

import dataclasses
import datetime
from collections.abc import Iterable, Iterator, Sequence

from tfparallel import models
from tfparallel.report import losses, run_records

_SCHEDULED = "Scheduled"
"""The scheduler's reason; its message ends with the name of the node."""

_STARTED = "Started"
"""The kubelet's reason for each container; the one that trains starts last."""

_STOPPED = "Killing"
"""The kubelet's reason when it stops a container. One that ends by itself has none."""

_UNKNOWN = "unknown"


@dataclasses.dataclass(frozen=True, slots=True)
class _Life:
    """A pod that is gone, as far as its Events say."""

    node: str
    started: datetime.datetime
    stopped: datetime.datetime | None
    """None: the kubelet did not stop it, or its Event is gone."""


def find(
    job: models.Job,
    replicas: Iterable[models.Replica],
    job_events: Sequence[models.Event],
    pod_events: Iterable[models.Event],
) -> Sequence[run_records.PodRun]:
    """Return the processes of all pods of a job in the order of their starts.

    Args:
        replicas: the pods that exist.
        job_events: of the job, oldest first.
        pod_events: of its pods, and of other objects, oldest first.
    """
    existing = {replica.pod: replica for replica in replicas}
    runs = [run for replica in existing.values() for run in _of_existing(replica)]
    gone: dict[str, list[models.Event]] = {}
    for event in pod_events:
        kind, _, name = event.object.partition("/")
        newest = existing[name].created if name in existing else None
        if kind == "pod" and job.created <= event.time and (newest is None or event.time < newest):
            gone.setdefault(name, []).append(event)
    for name, events in gone.items():
        newest = existing[name].created if name in existing else None
        runs += (_of_gone(job, name, life, job_events, newest) for life in _lives(events))
    return sorted(runs, key=lambda run: run.started)


def describe_end(reason: str, code: int | None) -> str:
    """Say how a process ended."""
    return reason if code in (None, 0) else f"{reason or 'ended'}, exit code {code}"


def _of_existing(replica: models.Replica) -> Iterator[run_records.PodRun]:
    if replica.started is None:
        return
    ended = replica.ended is not None
    yield run_records.PodRun(
        replica=replica.name,
        pod=replica.pod,
        attempt=replica.attempt,
        node=replica.node or _UNKNOWN,
        started=replica.started,
        ended=replica.ended,
        outcome=describe_end(replica.reason, replica.exit_code) if ended else "runs",
    )


def _lives(events: Iterable[models.Event]) -> Iterator[_Life]:
    """Yield the pods that had one name after each other."""
    life = _Life(_UNKNOWN, datetime.datetime.min, None)
    has_started = False
    for event in events:
        if event.reason == _SCHEDULED:
            if has_started:
                yield life
            life, has_started = _Life(event.message.rpartition(" ")[2], event.time, None), False
        elif event.reason == _STARTED:
            life, has_started = dataclasses.replace(life, started=event.time), True
        elif event.reason == _STOPPED and has_started:
            life = dataclasses.replace(life, stopped=event.time)
    if has_started:
        yield life


def _of_gone(
    job: models.Job,
    pod: str,
    life: _Life,
    job_events: Sequence[models.Event],
    newest: datetime.datetime | None,
) -> run_records.PodRun:
    later = [event for event in job_events if event.time > life.started]
    ends = [event.time for event in later if losses.ends(event, pod)]
    ends += [time for time in (newest, job.status.completion_time) if time and time > life.started]
    lost = next((event.reason for event in later if losses.names_pod(event, pod)), "")
    return run_records.PodRun(
        replica=pod.removeprefix(f"{job.name}-"),
        pod=pod,
        attempt=max(1, job.status.attempt - losses.count_attempts(later)),
        node=life.node,
        started=life.started,
        ended=life.stopped or min(ends, default=life.started),
        outcome=lost or "deleted",
    )
