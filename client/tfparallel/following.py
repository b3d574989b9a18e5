"""Follows a job on the terminal: why it waits, its log lines and its progress."""

import asyncio
import contextlib
from collections.abc import AsyncIterator

from tfparallel import backend, errors, models, replica_logs
from tfparallel.diagnosis import findings, job_diagnosis
from tfparallel.terminal import display
from tfparallel_operator.api import job_status, load, names
from tfparallel_operator.core import decision

_LOOK_SECONDS = 2.0
"""Seconds between two requests for events."""

_ADVICE_SECONDS = 12.0
"""Seconds between two diagnoses of a waiting job: an operator sees a new job earlier."""

_WAITS = (
    findings.FindingKind.UNSEEN,
    findings.FindingKind.REFUSED,
    findings.FindingKind.QUEUED,
    findings.FindingKind.PENDING,
    findings.FindingKind.STARTING,
)

_LAST_LINES_SECONDS = 10.0
"""How long to wait for the last lines of a job that has ended."""


async def follow(jobs: backend.Backend, job: models.Job, screen: display.Display) -> models.Job:
    """Show a job until it ends; return it.

    Raises:
        JobNotFound: it was deleted.
    """
    lines = asyncio.create_task(_show_lines(jobs, job, screen))
    others = [
        asyncio.create_task(_show_events(jobs, job, screen)),
        asyncio.create_task(_show_advice(jobs, job, screen)),
    ]
    try:
        ended = await _show_status(jobs, job, screen)
        await asyncio.wait([lines], timeout=_LAST_LINES_SECONDS)
        return ended
    finally:
        for task in (lines, *others):
            task.cancel()
        await asyncio.gather(lines, *others, return_exceptions=True)


async def _show_status(
    jobs: backend.Backend, job: models.Job, screen: display.Display
) -> models.Job:
    shown_reason = ""
    progress: job_status.ProgressStatus | None = None
    is_split = False
    async for observed_job in jobs.watch_job(job.name):
        if observed_job.is_finished:
            return observed_job
        if (reason := describe_waiting(observed_job)) not in ("", shown_reason):
            shown_reason = reason
            screen.note(reason)
        if observed_job.status.placement is not None and not is_split:
            is_split = True
            screen.split(observed_job.status.placement)
        if observed_job.status.progress is not None and observed_job.status.progress != progress:
            progress = observed_job.status.progress
            screen.progress(progress)
    raise errors.JobNotFound(f"{job.name} was deleted while it was followed")


def describe_waiting(job: models.Job) -> str:
    """Return why a job waits before it trains; empty: it does not wait."""
    status = job.status
    if status.state is None:
        return "waiting for the operator"
    reasons = [
        f"{role}: {counts.pending} of {counts.desired} pending"
        + (f" ({counts.reason})" if counts.reason else "")
        for role, counts in status.replicas.items()
        if counts.pending
    ]
    if reasons:
        return "; ".join(reasons)
    if status.progress is None and status.replicas:
        return f"{status.ready} replicas run; waiting for the first step"
    return ""


async def _show_lines(jobs: backend.Backend, job: models.Job, screen: display.Display) -> None:
    async for line in _readable(
        replica_logs.read(jobs, job, replica_logs.ALL_REPLICAS, follow=True)
    ):
        screen.line(line.replica, line.text)


async def _readable(lines: AsyncIterator[replica_logs.Line]) -> AsyncIterator[replica_logs.Line]:
    """Yield lines until they cannot be read, for example without the right to."""
    with contextlib.suppress(errors.Failure):
        async for line in lines:
            yield line


async def _show_events(jobs: backend.Backend, job: models.Job, screen: display.Display) -> None:
    """Show what the operator decides: the events of the job itself."""
    shown: set[tuple[str, str]] = set()
    while True:
        with contextlib.suppress(errors.Failure):
            for event in await jobs.list_events(job):
                is_mine = event.object == f"{names.SINGULAR}/{job.name}"
                if is_mine and (event.reason, event.message) not in shown:
                    shown.add((event.reason, event.message))
                    kind = decision.EventType(event.type)
                    screen.event(decision.JobEvent(kind, event.reason, event.message))
        await asyncio.sleep(_LOOK_SECONDS)


async def _show_advice(jobs: backend.Backend, job: models.Job, screen: display.Display) -> None:
    """Say why a job waits and what to do, once for each cause, until it trains."""
    shown: set[str] = set()
    kind = findings.FindingKind.UNSEEN
    while kind in _WAITS:
        await asyncio.sleep(_ADVICE_SECONDS)
        with contextlib.suppress(errors.Failure, load.SpecError):
            diagnosis = await job_diagnosis.diagnose_job(jobs, job.name)
            kind, remedy = diagnosis.kind, diagnosis.remedy
            if kind in _WAITS and remedy not in shown and not remedy.startswith("Wait"):
                shown.add(remedy)
                screen.note(f"{diagnosis.sentence.rstrip('.')}. {remedy}")
