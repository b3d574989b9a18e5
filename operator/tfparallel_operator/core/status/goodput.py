"""Goodput: each second of a job since its creation belongs to one activity. Pure.

The status has the sums up to the moment when the latest phase began. `advance` adds a phase to them
when the next one begins, with a write of the status that happens anyway. `measure` divides the time
since, by what the coordinator has reported. So the sums of `measure` are always the job's age.
"""

import dataclasses
import datetime
import itertools
from collections.abc import Iterable, Mapping

from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import observation
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import progress

Activity = names.Activity

_RUN = (Activity.STARTING, Activity.TRAINING, Activity.RESTARTING)
"""Phases in which a job trains as soon as its first step begins."""

_MEASURED: Mapping[str, str] = {
    Activity.EVALUATING: "evaluating",
    Activity.CHECKPOINTING: "checkpointing",
    Activity.RECOMPUTING: "recomputing",
    Activity.INPUT_WAIT: "input_wait",
    Activity.TRAINING: "training",
}
"""Fields of `progress.RunSeconds`."""

_SECOND = datetime.timedelta(seconds=1)


@dataclasses.dataclass(frozen=True, slots=True)
class Goodput:
    """A job's time by activity, up to a moment."""

    seconds: Mapping[Activity, int]
    """Every activity, in the order of `Activity`."""
    activity: str | None
    """What the job does at that moment; None: it has ended."""

    @property
    def age(self) -> int:
        """Seconds since the job's creation; of a job that has ended, until its end."""
        return sum(self.seconds.values())

    @property
    def share(self) -> float:
        """The part of the age that is training."""
        return self.seconds[Activity.TRAINING] / self.age if self.age else 0.0


def measure(status: job_status.JobStatus, now: datetime.datetime) -> Goodput | None:
    """Divide the age of a job among activities; None: no operator has recorded its goodput."""
    recorded = status.goodput
    if recorded is None:
        return None
    report = _find_report(status)
    open_phase = _divide(recorded, report, now) if recorded.phase else {}
    every = _add(recorded.seconds, open_phase)
    activity = recorded.phase if report is None else Activity.TRAINING
    return Goodput({kind: every.get(kind.value, 0) for kind in Activity}, activity)


def find_known_time(status: job_status.JobStatus) -> datetime.datetime | None:
    """Return the moment up to which nothing that is still to come changes what `measure` returns.

    None: no operator has recorded the goodput.
    """
    if status.goodput is None:
        return None
    report = _find_report(status)
    reported_at = None if report is None else report.last_update_time
    return max(status.goodput.since, reported_at or status.goodput.since)


def end_at_known_time(status: job_status.JobStatus) -> job_status.JobStatus:
    """Return the status of a job whose operator is gone, with its goodput up to what is known."""
    end = find_known_time(status)
    measured = None if end is None else measure(status, end)
    if end is None or measured is None:
        return status
    spent = {kind.value: seconds for kind, seconds in measured.seconds.items() if seconds}
    ended = job_status.GoodputStatus(since=end, seconds=spent)
    return status.model_copy(update={"goodput": ended})


def advance(
    before: job_status.JobStatus,
    after: job_status.JobStatus,
    pods: Iterable[observation.Pod],
    created: datetime.datetime | None,
    now: datetime.datetime,
    *,
    reports_steps: bool,
) -> job_status.JobStatus:
    """Return a status that has been decided on, with the goodput up to the phase that it begins.

    Args:
        before: the status as last written.
        after: the status to write next.
        pods: the job's pods, whose times divide the phase that ends.
        created: when the job was created; None: unknown, so its age counts from now.
        now: the time of the decision.
        reports_steps: whether the shipped trainer runs, which reports when training begins.
    """
    if before.goodput is None and after == before:
        return after  # An older operator wrote it, and nothing else has to be written.
    recorded = before.goodput or _first_phase(before, created or now, now)
    phase = _find_phase(after, recorded.phase, reports_steps=reports_steps)
    kind = names.ConditionType.RUNNING
    runs_on = conditions.is_true(before, kind) == conditions.is_true(after, kind)
    if phase == recorded.phase and runs_on:
        return after.model_copy(update={"goodput": recorded})
    since = max(recorded.since, now)
    ending = before.model_copy(update={"goodput": recorded})
    runs = conditions.is_true(after, kind)
    members = (
        pod
        for pod in pods
        if pod.attempt == after.attempt
        and pod.replica.role is not types.Role.EVALUATOR
        and not (runs and pod.phase is observation.Phase.PENDING)
    )
    spent = _divide(recorded, _find_report(ending), since, members)
    following = job_status.GoodputStatus(
        phase=phase, since=since, seconds=_add(recorded.seconds, spent)
    )
    return after.model_copy(update={"goodput": following})


def _first_phase(
    status: job_status.JobStatus, created: datetime.datetime, now: datetime.datetime
) -> job_status.GoodputStatus:
    """Begin with the creation of a job, or with the start of one that an older operator started."""
    created = min(created, now).replace(microsecond=0)
    if not status.attempt or status.start_time is None:
        return job_status.GoodputStatus(phase=Activity.QUEUED, since=created)
    since = min(max(created, status.start_time), now).replace(microsecond=0)
    phase = _find_phase(status, None, reports_steps=True)
    if phase is None:
        since = min(max(since, status.completion_time or now), now).replace(microsecond=0)
    queued = _count_seconds(created, since)
    return job_status.GoodputStatus(
        phase=phase, since=since, seconds={Activity.QUEUED.value: queued} if queued else {}
    )


def _find_phase(
    status: job_status.JobStatus, previous: str | None, *, reports_steps: bool
) -> Activity | None:
    """Return the phase of a status; None: the job has ended.

    A job that trained, and whose replicas no longer all run, restarts: it has lost some.
    """
    if conditions.finished(status):
        return None
    if conditions.is_true(status, names.ConditionType.SUSPENDED):
        return Activity.SUSPENDED
    if not conditions.has_begun(status):
        return Activity.QUEUED
    if conditions.is_true(status, names.ConditionType.RUNNING):
        if not reports_steps:
            return Activity.TRAINING
        return Activity.RESTARTING if previous == Activity.RESTARTING else Activity.STARTING
    restarts = previous in _RUN or conditions.is_true(status, names.ConditionType.RESTARTING)
    return Activity.RESTARTING if restarts else Activity.SCHEDULING


def _divide(
    recorded: job_status.GoodputStatus,
    report: job_status.ProgressStatus | None,
    until: datetime.datetime,
    pods: Iterable[observation.Pod] = (),
) -> Mapping[str, int]:
    """Divide the time from the begin of the recorded phase until a moment, in whole seconds."""
    phase, since = recorded.phase, recorded.since
    total = _count_seconds(since, until)
    if phase is None:  # The job had ended, and its spec was corrected.
        return {Activity.SUSPENDED: total}
    if phase == Activity.SCHEDULING:
        return _divide_creation(since, total, pods)
    if report is None or report.last_update_time is None:
        return {phase: total}
    if report.seconds is None:  # The trainer is older than goodput.
        return {Activity.TRAINING: total}
    reported = min(total, _count_seconds(since, report.last_update_time))
    spent = _list_seconds(report.seconds)
    return _add(
        {phase: max(0, reported - sum(spent.values()))},
        _shorten(spent, reported),
        {Activity.TRAINING: total - reported},
    )


def _divide_creation(
    since: datetime.datetime, total: int, pods: Iterable[observation.Pod]
) -> Mapping[str, int]:
    """Divide the time in which pods are scheduled, pull images and start their containers."""
    listed = list(pods)
    scheduled = _find_last(since, total, [pod.scheduled_at for pod in listed])
    started = max(scheduled, _find_last(since, total, [pod.started_at for pod in listed]))
    return {
        Activity.SCHEDULING: scheduled,
        Activity.PULLING: started - scheduled,
        Activity.STARTING: total - started,
    }


def _find_last(
    since: datetime.datetime, total: int, moments: list[datetime.datetime | None]
) -> int:
    """Return after how many seconds the last pod got so far: all of them if one has not yet."""
    if not moments or None in moments:
        return total
    return min(total, max(_count_seconds(since, moment) for moment in moments if moment))


def _find_report(status: job_status.JobStatus) -> job_status.ProgressStatus | None:
    """Return the latest report of a running job, if it arrived in the recorded phase.

    A report of no whole second comes with the first step, and the next one says when that ended.
    """
    recorded, report = status.goodput, status.progress
    if recorded is None or recorded.phase not in _RUN or report is None:
        return None
    if not conditions.is_true(status, names.ConditionType.RUNNING):
        return None
    if report.seconds is not None and not any(_list_seconds(report.seconds).values()):
        return None
    arrived_at = report.last_update_time
    return report if arrived_at is not None and arrived_at > recorded.since else None


def _list_seconds(seconds: progress.RunSeconds) -> dict[str, int]:
    return {kind: getattr(seconds, field) for kind, field in _MEASURED.items()}


def _shorten(spent: Mapping[str, int], reported: int) -> Mapping[str, int]:
    """Return parts that fit into the seconds that are reported.

    The coordinator has trained for longer than the phase lasts if only its peers restarted. Then
    each activity gets its share.
    """
    whole = sum(spent.values())
    if whole <= reported:
        return spent
    ends = [total * reported // whole for total in itertools.accumulate(spent.values(), initial=0)]
    parts = itertools.pairwise(ends)
    return {kind: end - begin for kind, (begin, end) in zip(spent, parts, strict=True)}


def _add(*parts: Mapping[str, int]) -> dict[str, int]:
    """Add up seconds by activity, without activities that took none."""
    total: dict[str, int] = {}
    for part in parts:
        for kind, seconds in part.items():
            if seconds:
                total[str(kind)] = total.get(str(kind), 0) + seconds
    return total


def _count_seconds(begin: datetime.datetime, end: datetime.datetime) -> int:
    """Return the whole seconds between two moments; 0 if a clock was set back."""
    return max(0, (end - begin) // _SECOND)
