"""When processes of the coordinator started: by train log, pods and Events. Pure."""

import dataclasses
import datetime
from collections.abc import Sequence

from tfparallel import models, train_log
from tfparallel.report import losses, run_records
from tfparallel_operator.api import names

SKEW = datetime.timedelta(seconds=1)
"""By which clocks of the trainer, of nodes and of events may differ."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """The start of a process of the coordinator."""

    began: datetime.datetime
    pod: run_records.PodRun | None = None
    """Its pod, where one is on record."""


def find(run: run_records.RunRecords) -> Sequence[Start]:
    """Return the starts of a run, oldest first.

    The record of a first step says when its process started. Pods, and events that replicas run,
    say so of processes that recorded none.
    """
    coordinator = run.job.coordinator
    pods = [pod for pod in run.pods if pod.replica == coordinator]
    logged = [_of_record(record, pods) for record in run.records if record.is_first_step]
    first_in_pod = {id(start.pod): start for start in reversed(logged) if start.pod is not None}
    pod_starts = [Start(pod.started, pod) for pod in pods]
    # What a process records begins when Python has started, which is later than its pod.
    later = [start for start in logged if start is not first_in_pod.get(id(start.pod))]
    starts = _with_events(run, [*later, *pod_starts], f"{run.job.name}-{coordinator}")
    if not starts and run.records:
        return (Start(run.records[0].time),)
    return sorted(starts, key=lambda start: start.began)


def _of_record(record: train_log.Record, pods: Sequence[run_records.PodRun]) -> Start:
    """Return the start of the process that recorded its first step; its pod started before it."""
    seconds = float(record.fields.get("seconds", 0.0))
    began = record.time - datetime.timedelta(seconds=seconds)
    before = [pod for pod in pods if pod.started - SKEW <= began and _may_live(pod, record.time)]
    return Start(began, min(before, key=lambda pod: abs(pod.started - began), default=None))


def _may_live(pod: run_records.PodRun, moment: datetime.datetime) -> bool:
    """Whether a pod was there at a moment; nobody saw the end of one that ended as it started."""
    return pod.ended is None or pod.ended == pod.started or moment <= pod.ended + SKEW


def _with_events(run: run_records.RunRecords, starts: Sequence[Start], pod: str) -> Sequence[Start]:
    """Add the starts that only events know: replicas run, and no process that is known lives."""
    ends = [event for event in run.events if losses.ends(event, pod) or losses.starts_job(event)]
    listed = list(starts)
    for event in run.events:
        if event.reason == names.Reason.REPLICAS_RUNNING:
            lives = (not any(_lies_between(end, start, event) for end in ends) for start in listed)
            if not any(lives):
                listed.append(Start(event.time))
    return listed


def _lies_between(event: models.Event, start: Start, running: models.Event) -> bool:
    """Whether an event lies between a start and replicas that run, whichever is earlier."""
    first, last = sorted((start.began, running.time))
    return first < event.time <= last
