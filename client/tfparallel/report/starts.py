"""When processes of the coordinator started: by train log, pods and Events. Pure."""

import dataclasses
import datetime
from collections.abc import Iterator, Sequence

from tfparallel import models, train_log
from tfparallel.report import losses, mesh, records
from tfparallel_operator.api import names

SKEW = datetime.timedelta(seconds=1)
"""By which clocks of the trainer, of nodes and of events may differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """The start of a process of the coordinator."""

    began: datetime.datetime
    pod: records.PodRun | None = None
    """Its pod, where one is on record."""


def find(run: records.Run) -> Sequence[Start]:
    """Return the starts of a run, oldest first.

    The record of a first step says when its process started. Pods, and events that replicas run,
    say so of processes that recorded none.
    """
    coordinator = next(iter(mesh.training_replicas(run)), "")
    pods = [pod for pod in run.pods if pod.replica == coordinator]
    logged = [_of_record(record, pods) for record in run.records if record.is_first_step]
    known = {id(start.pod) for start in logged}
    seen = [Start(pod.started, pod) for pod in pods if id(pod) not in known]
    starts = _with_events(run, [*logged, *seen], f"{run.job.name}-{coordinator}")
    if not starts and run.records:
        return (Start(run.records[0].time),)
    return sorted(starts, key=lambda start: start.began)


def _of_record(record: train_log.Record, pods: Sequence[records.PodRun]) -> Start:
    """Return the start of the process that recorded its first step; its pod started before it."""
    seconds = float(record.fields.get("seconds", 0.0))
    began = record.time - datetime.timedelta(seconds=seconds)
    before = [pod for pod in pods if pod.started - SKEW <= began and _may_live(pod, record.time)]
    return Start(began, min(before, key=lambda pod: abs(pod.started - began), default=None))


def _may_live(pod: records.PodRun, moment: datetime.datetime) -> bool:
    """Whether a pod was there at a moment; nobody saw the end of one that ended as it started."""
    return pod.ended is None or pod.ended == pod.started or moment <= pod.ended + SKEW


def _with_events(run: records.Run, starts: Sequence[Start], pod: str) -> Sequence[Start]:
    """Add the starts that only events know: replicas run, and no process that is known lives."""
    found = list(starts)
    for event in run.events:
        if event.reason == names.Reason.REPLICAS_RUNNING:
            before = [start for start in found if start.began <= event.time + SKEW]
            newest = max(before, key=lambda start: start.began, default=None)
            if newest is None or any(_ends_between(run, newest, event, pod)):
                found.append(Start(event.time))
    return found


def _ends_between(
    run: records.Run, start: Start, running: models.Event, pod: str
) -> Iterator[bool]:
    """Yield of each event between a start and replicas that run whether it ended the process."""
    for event in run.events:
        if start.began < event.time <= running.time:
            yield losses.ends(event, pod) or losses.starts_job(event)
