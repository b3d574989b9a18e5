"""Writes reports of progress into the status of jobs, not more often than the contract says."""

import asyncio
import dataclasses
import datetime
import logging
from typing import NamedTuple

from pydantic import alias_generators

from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.workqueue import queue, timers
from tfparallel_trainer.contract import progress
from tfparallel_trainer.contract.progress import Progress

_LOG = logging.getLogger(__name__)

WRITERS = 2
"""Reports that are written at the same time, over all jobs: training is not slowed by them. Those
of one namespace leave one of them to the others: a large job is slow to write."""

_PASSING = (errors.Unavailable, errors.Refused)
"""Errors that may pass by themselves. Others would come again with the same report."""

_FIRST_CLEANING = 64
"""Jobs whose reports are kept before those that are gone are looked for the first time."""


class _Address(NamedTuple):
    """Which job a report is of. Another job may have its name later."""

    namespace: str
    uid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """What a job's coordinator said, and when it arrived."""

    key: queue.Key
    uid: str
    progress: progress.Report
    arrived_at: datetime.datetime

    @property
    def address(self) -> _Address:
        """Where it is kept until it is written."""
        return _Address(self.key.namespace, self.uid)


@dataclasses.dataclass(slots=True)
class _Mailbox:
    """What is known of the reports of one job."""

    key: queue.Key
    latest: Report | None = None
    """What waits to be written."""
    is_resting: bool = False
    """Whether the pause after the last write goes on."""
    ended_attempt: int | None = None
    """The attempt whose last report was written within the pause: one of each attempt may be."""
    has_failed: bool = False
    """Whether the last write failed, which is logged once until one succeeds."""


class Publisher:
    """Keeps the latest report of each job and writes it when it is due."""

    def __init__(
        self,
        api: client.Client,
        job_store: jobs.Jobs,
        clock: wall_clock.Clock = wall_clock.utc_now,
        interval: float = progress.MIN_INTERVAL_SECONDS,
    ) -> None:
        self._api = api
        self._jobs = job_store
        self._interval = interval
        self._mailboxes: dict[_Address, _Mailbox] = {}
        self._cleaned_at = _FIRST_CLEANING
        self._queue: queue.Queue[_Address] = queue.Queue(most_of_namespace=WRITERS - 1)
        self._timers: timers.Timers[_Address] = timers.Timers(self._due, clock)

    def submit(self, report: Report) -> None:
        """Have a report written: now if the job's last one is long ago or training has ended."""
        mailbox = self._mailboxes.get(report.address) or self._open(report)
        mailbox.latest = report
        if not mailbox.is_resting or self._may_not_wait(mailbox, report):
            self._queue.add(report.address)

    async def run(self) -> None:
        """Write reports forever."""
        async with asyncio.TaskGroup() as group:
            for _ in range(WRITERS):
                group.create_task(self._write_all())

    def _open(self, report: Report) -> _Mailbox:
        """Begin to keep the reports of a job; now and then forget those of jobs that are gone."""
        if len(self._mailboxes) >= self._cleaned_at:
            self._mailboxes = {
                address: mailbox
                for address, mailbox in self._mailboxes.items()
                if self._find_job(mailbox.key, address.uid) is not None
            }
            self._cleaned_at = max(_FIRST_CLEANING, 2 * len(self._mailboxes))
        mailbox = self._mailboxes[report.address] = _Mailbox(report.key)
        return mailbox

    def _may_not_wait(self, mailbox: _Mailbox, report: Report) -> bool:
        """Whether it is the last report of an attempt, and the first that says so."""
        body = self._find_job(report.key, report.uid)
        if body is None or not _last(report.progress):
            return False
        attempt = int((body.get("status") or {}).get("attempt", 0))
        is_first, mailbox.ended_attempt = attempt != mailbox.ended_attempt, attempt
        return is_first

    def _find_job(self, key: queue.Key, uid: str) -> jobs.Body | None:
        """Return the job; None when it is gone, or another one has its name."""
        body = self._jobs.get(key)
        return body if body is not None and body["metadata"]["uid"] == uid else None

    def _rest(self, address: _Address, mailbox: _Mailbox) -> None:
        mailbox.is_resting = True
        self._timers.after(address, self._interval)

    def _due(self, address: _Address) -> None:
        mailbox = self._mailboxes.get(address)
        if mailbox is not None:
            mailbox.is_resting = False
            if mailbox.latest is not None:
                self._queue.add(address)

    async def _write_all(self) -> None:
        while True:
            address = await self._queue.get()
            try:
                mailbox = self._mailboxes.get(address)
                if mailbox is not None and mailbox.latest is not None:
                    report, mailbox.latest = mailbox.latest, None
                    self._rest(address, mailbox)
                    await self._deliver(mailbox, report)
            finally:
                self._queue.done(address)

    async def _deliver(self, mailbox: _Mailbox, report: Report) -> None:
        """Write a report, keep it for later, or drop it: whatever it is, other reports go on."""
        try:
            await self._write(report)
        except (errors.NotFound, errors.Conflict):
            return  # The job is gone, or another one has its name by now.
        except _PASSING as error:
            mailbox.latest = mailbox.latest or report
            # The pause may be over already: the answer took longer.
            self._rest(report.address, mailbox)
            self._log_once(mailbox, f"again in {self._interval:.0f} s", error)
        except Exception as error:
            self._log_once(mailbox, "the report is dropped", error)
        else:
            mailbox.has_failed = False

    async def _write(self, report: Report) -> None:
        body = self._find_job(report.key, report.uid)
        if body is None or _overtaken(report, body):
            return
        path = resources.JOBS.path(report.key.namespace, report.key.name, "status")
        self._jobs.update(
            await self._api.apply(path, manifest(report), names.PROGRESS_FIELD_MANAGER)
        )

    def _log_once(self, mailbox: _Mailbox, consequence: str, error: Exception) -> None:
        if not mailbox.has_failed:
            with logs.about(namespace=mailbox.key.namespace, job=mailbox.key.name):
                _LOG.warning("progress not written: %s; %s", logs.brief(error), consequence)
        mailbox.has_failed = True


def manifest(report: Report) -> client.Object:
    """Build what is applied: the report alone, so that its field manager owns nothing else."""
    reports = job_status.of_report(report.progress, report.arrived_at)
    status = {
        alias_generators.to_camel(name): part.model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        for name, part in reports._asdict().items()
        if part is not None
    }
    if reports.progress is not None and not reports.progress.metrics:
        # Where the last report had some, the API server would make an empty map null, and refuse.
        del status["progress"]["metrics"]
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


def _last(report: Progress) -> bool:
    done = report.total_steps is not None and report.step >= report.total_steps
    return done or report.percent == 100
