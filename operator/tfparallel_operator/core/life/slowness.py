"""Says whether training makes progress, and why it is slow, in words that change only with the
cause."""

import dataclasses
import datetime
import math
import statistics

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import progress

SILENCE = datetime.timedelta(seconds=60)
"""Twelve times as long as the coordinator pauses between two reports."""

LONG_RUN = datetime.timedelta(minutes=10)
"""Duration of an attempt that counts as progress."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slowness:
    """Why training is slow."""

    cause: str
    """The cause, as a clause."""
    remedy: str


@dataclasses.dataclass(frozen=True, slots=True)
class Pace:
    """The progress of training."""

    status: job_status.JobStatus
    now: datetime.datetime
    must_report: bool
    """Whether the shipped trainer runs: a script reports only if it calls `fit`."""
    listening_since: datetime.datetime | None = None
    """Since when this operator accepts reports; None: since before the job's start."""

    @property
    def report(self) -> job_status.ProgressStatus | None:
        """The latest report of this attempt."""
        return None if find_report_time(self.status) is None else self.status.progress

    @property
    def _silent_since(self) -> datetime.datetime | None:
        """When the last report arrived, or training began; None: no report is expected."""
        reported_at = find_report_time(self.status)
        if reported_at is None and not self.must_report:
            return None
        running = conditions.find_true(self.status, names.ConditionType.RUNNING)
        began = self.now if running is None else running.last_transition_time
        return max(reported_at or began, self.listening_since or began)

    @property
    def silent_at(self) -> datetime.datetime | None:
        """When training will count as slow unless it reports; None: it is slow already, or never
        will be."""
        since = self._silent_since
        return None if since is None or since + SILENCE <= self.now else since + SILENCE

    def find_slowness(self, job_name: str) -> Slowness | None:
        """Return why training is slow; None: nothing shows that it is."""
        if self._silent_since is not None and self.silent_at is None:
            return _describe_silence(self.report, job_name)
        if self.report is None:
            return None
        return (
            _describe_input_wait(self.report)
            or _describe_slow_stage(self.status.placement)
            or _describe_straggler(self.report)
        )


def find_report_time(status: job_status.JobStatus) -> datetime.datetime | None:
    """Return the time of this attempt's last report; None: it has not reported yet."""
    reported_at = None if status.progress is None else status.progress.last_update_time
    began = status.attempt_time or status.start_time
    if reported_at is None or (began is not None and reported_at <= began):
        return None
    return reported_at


def count_restarts(status: job_status.JobStatus, now: datetime.datetime) -> int:
    """Return the number of restarts since training made progress, including the next one.

    A loss while the attempt waits for its beginning leads to no further restart.
    """
    if has_run_long(status, now) or find_report_time(status) is not None:
        return 1
    has_begun = status.attempt_time is None or status.attempt_time <= now
    return max(1, status.restarts_since_progress + has_begun)


def has_run_long(status: job_status.JobStatus, now: datetime.datetime) -> bool:
    """Whether the attempt has run for so long that it counts as progress."""
    return status.attempt_time is not None and now - status.attempt_time >= LONG_RUN


def parse_number(text: str | None) -> float | None:
    """Return a number of a report; None: it is not a number, because a pod may report anything."""
    try:
        number = float(text or "")
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def _describe_silence(report: job_status.ProgressStatus | None, job_name: str) -> Slowness:
    if report is None:
        return Slowness(
            "no step has ended yet",
            "See what the coordinator does: it loads data, builds the graph of the first step, or"
            f" waits for a peer. `tfparallel logs {job_name} -f` follows it.",
        )
    return Slowness(
        f"it has reported nothing since step {report.step}",
        f"See whether a step, an evaluation or a checkpoint takes so long: `tfparallel logs"
        f" {job_name}`. Set runPolicy.stallDeadlineSeconds to have a hung job restarted.",
    )


def _describe_input_wait(report: job_status.ProgressStatus) -> Slowness | None:
    if (parse_number(report.input_wait) or 0.0) <= progress.MAX_INPUT_WAIT:
        return None
    return Slowness(
        f"it waits for its input more than {progress.MAX_INPUT_WAIT:.0%} of the time",
        "Do less for each example, in parallel (num_parallel_calls) or once (cache), or raise"
        " resources.requests.cpu of the replicas.",
    )


def _describe_slow_stage(placement: job_status.PlacementStatus | None) -> Slowness | None:
    """Say which stage of a split model computes for much longer than the others."""
    stages = () if placement is None else placement.stages
    busy = {s.stage: seconds for s in stages if (seconds := parse_number(s.busy_seconds))}
    if len(busy) < 2:
        return None
    slowest = max(stages, key=lambda stage: busy.get(stage.stage, 0.0))
    longest = busy.pop(slowest.stage)
    if longest <= progress.STRAGGLER_FACTOR * statistics.median(busy.values()):
        return None
    return Slowness(
        f"stage {slowest.stage} on {', '.join(slowest.devices)} computes for longer than the other"
        " stages, which wait for it",
        "Divide the layers more evenly: remove mesh.cuts so that the planner does, or move a cut."
        " If the division is even, look at the load of that node.",
    )


def _describe_straggler(report: job_status.ProgressStatus) -> Slowness | None:
    if report.straggler is None:
        return None
    return Slowness(
        f"{report.straggler} stays slower than the other replicas",
        "Look at the load of its node, and whether it has the resources of the others. If you"
        " delete its pod, the new one may run on another node.",
    )
