"""Writes reports of progress into the status of jobs, at most as often as the contract says."""

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
"""Concurrent writes of reports. Training does not wait for them. A namespace uses at most all but
one of the writers, because writing a large job is slow."""

_PASSING = (errors.Unavailable, errors.Refused)
"""Errors after which a retry may succeed. Others would repeat with the same report."""

_FIRST_CLEANING = 64
"""Number of mailboxes at which those of deleted jobs are first removed."""


class _Address(NamedTuple):
    """The job of a report. Another job may have its name later."""

    namespace: str
    uid: str


@dataclasses.dataclass(frozen=True, slots=True)
class Report:
    """A report of a job's coordinator, and when it arrived."""

    key: queue.Key
    uid: str
    content: progress.Report
    arrived_at: datetime.datetime

    @property
    def address(self) -> _Address:
        """The address of its mailbox."""
        return _Address(self.key.namespace, self.uid)


@dataclasses.dataclass(slots=True)
class _Mailbox:
    """The reports of one job."""

    key: queue.Key
    latest: Report | None = None
    """The report to write next."""
    is_resting: bool = False
    """Whether the pause after the last write is not over."""
    ended_attempt: int | None = None
    """The attempt whose last report was written without a pause: at most one for each attempt."""
    has_failed: bool = False
    """Whether the last write failed. Only the first failure in a row is logged."""


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
        """Write a report: at once if the pause is over or training has ended, else later."""
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
        """Create a job's mailbox; from time to time, remove the mailboxes of deleted jobs."""
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
        """Whether a report is the first that says that its attempt has ended."""
        body = self._find_job(report.key, report.uid)
        if body is None or not _last(report.content):
            return False
        attempt = int((body.get("status") or {}).get("attempt", 0))
        is_first, mailbox.ended_attempt = attempt != mailbox.ended_attempt, attempt
        return is_first

    def _find_job(self, key: queue.Key, uid: str) -> jobs.Body | None:
        """Return the job; None: it is gone, or another job has its name."""
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
        """Write a report, keep it for a retry, or drop it. Never raise, because others follow."""
        try:
            await self._write(report)
        except (errors.NotFound, errors.Conflict):
            return  # The job is gone, or another job has its name.
        except _PASSING as error:
            mailbox.latest = mailbox.latest or report
            # The answer may have taken longer than the pause.
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
    """Build the manifest to apply: the report alone, so its field manager owns no other field."""
    reports = job_status.of_report(report.content, report.arrived_at)
    status = {
        alias_generators.to_camel(name): part.model_dump(
            mode="json", by_alias=True, exclude_none=True
        )
        for name, part in reports._asdict().items()
        if part is not None
    }
    if reports.progress is not None and not reports.progress.metrics:
        # If the last report had metrics, the API server would turn an empty map into null.
        del status["progress"]["metrics"]
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": report.key.name, "uid": report.uid},
        "status": status,
    }


def _overtaken(report: Report, body: jobs.Body) -> bool:
    """Whether another replica of the operator has written a later report."""
    written = (body.get("status") or {}).get("progress") or {}
    at = written.get("lastUpdateTime")
    later = at is not None and datetime.datetime.fromisoformat(at) >= report.arrived_at
    return later and int(written.get("step", 0)) > report.content.step


def _last(report: Progress) -> bool:
    done = report.total_steps is not None and report.step >= report.total_steps
    return done or report.percent == 100
