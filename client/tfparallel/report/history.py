"""The attempts of a run and the processes of its replicas, in seconds after its begin. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence

from tfparallel.report import periods, run_records
from tfparallel_operator.api import names
from tfparallel_operator.core.status import conditions


@dataclasses.dataclass(frozen=True, slots=True)
class Bar:
    """A pod's process on the timeline, in seconds after the begin of the run."""

    replica: str
    attempt: int
    begin: float
    end: float
    outcome: str


@dataclasses.dataclass(frozen=True, slots=True)
class Attempt:
    """A row of the table of attempts."""

    number: int
    began: float
    """Seconds after the begin of the run."""
    start_seconds: float | None
    """Until the first step was made; None: none was."""
    ended: float
    steps: str
    """The first and the last."""
    cause: str
    reason: str
    """The cause in one word; empty: no event and no condition says it."""
    lost: float | None
    """Seconds that its end cost; None where nothing followed, or all was trained."""


def attempts(run: run_records.RunRecords) -> Iterator[Attempt]:
    """Yield the starts of training, oldest first."""
    listed = periods.find(run)
    for index, period in enumerate(listed):
        following = listed[index + 1] if index + 1 < len(listed) else None
        first = period.first_step
        reason, message = _find_end(run, listed, index)
        yield Attempt(
            number=period.number,
            began=run.seconds_at(period.began),
            start_seconds=None if first is None else (first - period.began).total_seconds(),
            ended=run.seconds_at(period.ended),
            steps=_steps_of(period),
            cause=f"{reason}: {message}" if reason else message,
            reason=reason,
            lost=None if following is None else periods.lost_seconds(period, following),
        )


def bars(run: run_records.RunRecords) -> Iterator[Bar]:
    """Yield the processes that pods had, and those of the coordinator that only the log knows."""
    for pod in run.pods:
        begin = max(0.0, run.seconds_at(pod.started))
        end = run.seconds_at(run.end if pod.ended is None else pod.ended)
        yield Bar(pod.replica, pod.attempt, begin, max(begin, end), pod.outcome)
    yield from _coordinator(run)


def without_pods(run: run_records.RunRecords) -> Sequence[int]:
    """Return the attempts of the job, no pod of which is on record.

    A pod that has stayed for later attempts is on record for each of them.
    """
    status = run.job.status
    attempts_with_pods = {pod.attempt for pod in run.pods}
    if status.pods_since is not None:
        attempts_with_pods.update(status.pod_attempts)
    return [
        attempt for attempt in range(1, status.attempt + 1) if attempt not in attempts_with_pods
    ]


def _steps_of(period: periods.Period) -> str:
    if period.first_step is None:
        return "none" if period.has_log else "not on record"
    return f"{period.resumed_step} to {period.last_step}"


def _find_end(
    run: run_records.RunRecords, listed: Sequence[periods.Period], index: int
) -> tuple[str, str]:
    """Return why a period ended: a reason, where an event or a condition has it, and words."""
    period, status = listed[index], run.job.status
    if period.cause is not None:
        return period.cause.reason, period.cause.message
    if index + 1 == len(listed):
        failed = conditions.find(status, names.ConditionType.FAILED)
        if failed is not None and run.job.state == names.State.FAILED:
            return failed.reason, failed.message
        return "", "Cut off" if run.is_cut_off else run.job.state
    if period.is_complete:
        return "", str(names.State.SUCCEEDED)
    # If each restart is counted here, the Events of some are gone.
    counts = status.restart_causes
    if sum(counts.values()) != len(listed) - 1:
        return "", "; ".join(filter(None, (period.outcome, "no event tells why it ended")))
    if len(counts) == 1:
        return next(iter(counts)), "by the status; the event is gone"
    of_all = ", ".join(f"{cause} {count}" for cause, count in counts.items())
    return "", f"the event is gone; the status counts {of_all}"


def _coordinator(run: run_records.RunRecords) -> Iterator[Bar]:
    """Yield the processes of the coordinator whose pods are gone, as the train log has them."""
    replica = run.job.coordinator
    pods = [pod for pod in run.pods if pod.replica == replica]
    for period in periods.find(run):
        is_known = any(
            pod.started <= period.ended and (pod.ended or run.end) >= period.began for pod in pods
        )
        if replica and period.records and not is_known:
            number = period.attempt or period.number
            begin, end = run.seconds_at(period.began), run.seconds_at(period.ended)
            yield Bar(replica, number, max(0.0, begin), end, "its pod is gone")
