"""Writes reports of progress into the status of jobs, not more often than the contract says."""

import asyncio
import dataclasses
import datetime
import logging

from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_trainer.contract import progress

_LOG = logging.getLogger(__name__)

WRITERS = 2
"""Reports that are written at the same time, over all jobs: training is not slowed by them."""


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a job's coordinator said, and when it arrived."""

    key: queue.Key
    uid: str
    progress: progress.Report
    arrived_at: datetime.datetime


class Publisher:
    """Keeps the latest report of each job and writes it when it is due."""

    def __init__(
        self,
        api: client.Client,
        known: jobs.Jobs,
        clock: wall_clock.Clock = wall_clock.utc_now,
        interval: float = progress.MIN_INTERVAL_SECONDS,
    ) -> None:
        self._api = api
        self._jobs = known
        self._interval = interval
        self._latest: dict[str, Report] = {}
        self._resting: set[str] = set()
        self._queue: queue.Queue[str] = queue.Queue()
        self._timers: timers.Timers[str] = timers.Timers(self._due, clock)

    def submit(self, report: Report) -> None:
        """Have a report written: now if the job's last one is long ago or training has ended."""
        self._latest[report.uid] = report
        if report.uid not in self._resting or _last(report.progress):
            self._queue.add(report.uid)

    async def run(self) -> None:
        """Write reports forever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    def _due(self, uid: str) -> None:
        self._resting.discard(uid)
        if uid in self._latest:
            self._queue.add(uid)

    async def _write_all(self) -> None:
        while True:
            uid = await self._queue.get()
            try:
                report = self._latest.pop(uid, None)
                if report is not None:
                    self._resting.add(uid)
                    self._timers.after(uid, self._interval)
                    await self._write(report)
            finally:
                self._queue.done(uid)

    async def _write(self, report: Report) -> None:
        body = self._jobs.get(report.key)
        if body is None or body["metadata"]["uid"] != report.uid:
            return  # The job is gone, or another one has its name.
        if _overtaken(report, body):
            return
        path = resources.JOBS.path(report.key.namespace, report.key.name, "status")
        try:
            self._jobs.answered(
                await self._api.apply(path, manifest(report), names.PROGRESS_FIELD_MANAGER)
            )
        except (errors.NotFound, errors.Conflict):
            return  # The job is gone, or another one has its name by now.
        except errors.ApiError as error:
            self._latest.setdefault(report.uid, report)
            # The pause may be over already: the answer took longer.
            self._resting.add(report.uid)
            self._timers.after(report.uid, self._interval)
            with logs.about(namespace=report.key.namespace, job=report.key.name):
                _LOG.warning("progress not written: %s; again in %.0f s", error, self._interval)


def manifest(report: Report) -> client.Object:
    """Build what is applied: the report alone, so that its field manager owns nothing else."""
    shown, placement = job_status.of_report(report.progress, report.arrived_at)
    status = {"progress": shown.model_dump(mode="json", by_alias=True, exclude_none=True)}
    if placement is not None:
        status["placement"] = placement.model_dump(mode="json", by_alias=True, exclude_none=True)
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": report.key.name, "uid": report.uid},
        "status": status,
    }


def _overtaken(report: Report, body: jobs.Body) -> bool:
    """Whether a later report was written, by the other operator that it reached."""
    written = (body.get("status") or {}).get("progress") or {}
    at = written.get("lastUpdateTime")
    later = at is not None and datetime.datetime.fromisoformat(at) >= report.arrived_at
    return later and int(written.get("step", 0)) > report.progress.step


def _last(report: progress.Progress) -> bool:
    done = report.total_steps is not None and report.step >= report.total_steps
    return done or report.percent == 100
