"""Metrics of the operator for Prometheus.

Counters of jobs grow by the difference between two versions of a status, whoever wrote them. So
neither a lost answer nor a skipped version leads to a wrong count. No label contains the name of a
job or a pod, because their number is unbounded.
"""

import datetime
import enum
import importlib.metadata
from collections.abc import Mapping
from typing import Any

import prometheus_client
import pydantic
from aiohttp import web
from prometheus_client import exposition

from tfparallel_operator.api import job_status, names, policies
from tfparallel_operator.core.status import goodput

PATH = "/metrics"

Body = Mapping[str, Any]

_MINUTE, _HOUR, _DAY = 60, 3600, 86_400
_LONG = (30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 4 * _HOUR, 12 * _HOUR, _DAY, 3 * _DAY)
_START = (1, 2, 5, 10, 30, _MINUTE, 5 * _MINUTE, 15 * _MINUTE, _HOUR, 4 * _HOUR)
_SHORT = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


_PARTS = (
    *("probes", "children", "sweeper", "history"),
    *("worker", "progress", "publisher", "certificates"),
)
"""The parts of the engine, which restart after a failure."""


class ReconcileResult(enum.StrEnum):
    """The result of a reconcile."""

    DONE = "done"
    STARTED = "started"
    CONFLICT = "conflict"
    BLOCKED = "blocked"
    REFUSED = "refused"
    ERROR = "error"
    BUG = "bug"


UNSERVED = frozenset(
    {ReconcileResult.STARTED, ReconcileResult.CONFLICT, ReconcileResult.ERROR, ReconcileResult.BUG}
)
"""Results after which the events before the reconcile still need a status."""


class Metrics:
    """The counters and histograms, and their registry."""

    def __init__(self) -> None:
        self.registry = prometheus_client.CollectorRegistry()
        prometheus_client.ProcessCollector(registry=self.registry)
        options: dict[str, Any] = {"namespace": "tfparallel", "registry": self.registry}
        self._started = prometheus_client.Counter(
            "jobs_started", "Jobs whose first attempt began.", **options
        )
        self._ended = prometheus_client.Counter(
            "jobs_ended", "Jobs that ended.", ["state", "reason"], **options
        )
        self._restarts = prometheus_client.Counter(
            "job_restarts", "Restarts of replicas, alone or together.", ["cause"], **options
        )
        # Series start at 0, because `increase` of Prometheus misses the first count of a new one.
        for cause in policies.Cause:
            self._restarts.labels(cause.value)
        self._activity = prometheus_client.Counter(
            "job_activity_seconds", "The age of jobs, by what they did.", ["activity"], **options
        )
        for activity in names.Activity:
            self._activity.labels(activity.value)
        self._duration = prometheus_client.Histogram(
            "job_duration_seconds",
            "From the start of a job to its end.",
            ["state"],
            buckets=_LONG,
            **options,
        )
        self._startup = prometheus_client.Histogram(
            "job_startup_seconds",
            "From the start of a job until its replicas first run.",
            buckets=_START,
            **options,
        )
        self._reconciled = prometheus_client.Histogram(
            "reconcile_duration_seconds",
            "One reconcile of one job, with its writes.",
            ["outcome"],
            buckets=_SHORT,
            **options,
        )
        for outcome in ReconcileResult:
            self._reconciled.labels(outcome.value)
        self._delay = prometheus_client.Histogram(
            "status_delay_seconds",
            "From an event about a job until its status was written.",
            buckets=_SHORT,
            **options,
        )
        self._requests = prometheus_client.Counter(
            "api_requests", "Requests to the API server.", ["verb", "resource", "code"], **options
        )
        self._answers = prometheus_client.Histogram(
            "api_request_duration_seconds",
            "Until the API server has responded, without watches.",
            ["verb"],
            buckets=_SHORT,
            **options,
        )
        self._reports = prometheus_client.Counter(
            "progress_reports",
            "Reports of progress, by the status of the response.",
            ["code"],
            **options,
        )
        self._rewound = prometheus_client.Counter(
            "history_rewinds", "Restores of etcd from an older copy that were noticed.", **options
        )
        self._failures = prometheus_client.Counter(
            "part_failures",
            "Failures of parts of the operator, which then restart.",
            ["part"],
            **options,
        )
        for part in _PARTS:
            self._failures.labels(part)
        version = importlib.metadata.version("tfparallel-operator")
        prometheus_client.Info("operator", "The operator.", **options).info({"version": version})

    def job_changed(self, before: Body | None, after: Body) -> None:
        """Count the changes between two versions of a job; None: the job is new here."""
        if before is None or before["metadata"]["uid"] != after["metadata"]["uid"]:
            return  # Its earlier changes are unknown, or an earlier operator has counted them.
        old, new = before.get("status") or {}, after.get("status") or {}
        if not old.get("attempt") and new.get("attempt"):
            self._started.inc()
        self._count_restarts(old.get("restartCauses") or {}, new.get("restartCauses") or {})
        self._count_seconds(old, new)
        running = _condition(new, names.ConditionType.RUNNING)
        if _is_true(running) and new.get("attempt") == 1 and _never_ran(old):
            seconds = _seconds(new.get("startTime"), running["lastTransitionTime"])
            self._startup.observe(seconds)
        ended = _ended(new)
        if ended is not None and _ended(old) is None:
            self._ended.labels(ended["type"], ended["reason"]).inc()
            if new.get("startTime"):
                seconds = _seconds(new["startTime"], new.get("completionTime"))
                self._duration.labels(ended["type"]).observe(seconds)

    def _count_restarts(self, old: Mapping[str, int], new: Mapping[str, int]) -> None:
        """Count new restarts, but not a restart whose cause was only corrected."""
        left = sum(new.values()) - sum(old.values())
        for cause, number in new.items():
            more = min(left, number - old.get(cause, 0))
            if more > 0:
                self._restarts.labels(cause).inc(more)
                left -= more

    def _count_seconds(self, old: Body, new: Body) -> None:
        """Count the seconds by which activities have grown."""
        if all(old.get(field) == new.get(field) for field in ("goodput", "progress")):
            return
        before = _measure_goodput(old)
        for activity, seconds in _measure_goodput(new).items():
            more = seconds - before.get(activity, 0)
            if more > 0:
                self._activity.labels(activity.value).inc(more)

    def called(self, verb: str, resource: str, code: int, seconds: float | None) -> None:
        """Count a request.

        Args:
            verb: of the request, such as list.
            resource: the plural of the resource.
            code: the HTTP status; 0: no answer.
            seconds: until the answer; None: not measured, as of a watch.
        """
        self._requests.labels(verb, resource, str(code) if code else "none").inc()
        if seconds is not None:
            self._answers.labels(verb).observe(seconds)

    def reconciled(self, outcome: ReconcileResult, seconds: float) -> None:
        """Count a reconcile."""
        self._reconciled.labels(outcome.value).observe(seconds)

    def status_written(self, seconds: float) -> None:
        """Count a written status and the seconds since its event."""
        self._delay.observe(seconds)

    def reported(self, code: int) -> None:
        """Count a report of progress by the HTTP status of the answer."""
        self._reports.labels(str(code)).inc()

    def rewound(self) -> None:
        """Count a restore of etcd from an older copy."""
        self._rewound.inc()

    def part_failed(self, part: str) -> None:
        """Count a failure of a part of the operator, which restarts."""
        self._failures.labels(part.split()[0]).inc()

    def route(self) -> web.RouteDef:
        """Return the route of the metrics, in the format that the request accepts."""

        async def show(request: web.Request) -> web.Response:
            encode, content_type = exposition.choose_encoder(request.headers.get("Accept", ""))
            headers = {"Content-Type": content_type}
            return web.Response(body=encode(self.registry), headers=headers)

        return web.get(PATH, show)


def _condition(status: Body, kind: names.ConditionType) -> Body:
    """Return a condition; empty: it was never set."""
    conditions = status.get("conditions") or ()
    return next((condition for condition in conditions if condition["type"] == kind), {})


def _is_true(condition: Body) -> bool:
    return condition.get("status") == "True"


def _measure_goodput(status: Body) -> Mapping[names.Activity, int]:
    """Return the seconds by activity that no later version of the status divides otherwise."""
    fields = {field: status.get(field) for field in ("goodput", "progress", "conditions")}
    try:
        parsed = job_status.JobStatus.model_validate({k: v for k, v in fields.items() if v})
    except pydantic.ValidationError:
        return {}  # The job is left alone, and its Event says why.
    known_until = goodput.find_known_time(parsed)
    measured = None if known_until is None else goodput.measure(parsed, known_until)
    return {} if measured is None else measured.seconds


def _ended(status: Body) -> Body | None:
    """Return the condition with which a job has ended; None: it has not."""
    ends = (names.ConditionType.SUCCEEDED, names.ConditionType.FAILED)
    conditions = (_condition(status, kind) for kind in ends)
    return next((condition for condition in conditions if _is_true(condition)), None)


def _never_ran(status: Body) -> bool:
    """Whether the replicas have been pending since the start of the job."""
    running = _condition(status, names.ConditionType.RUNNING)
    return not _is_true(running) and running.get("lastTransitionTime") in (
        None,
        status.get("startTime"),
    )


def _seconds(start: str | None, end: str | None) -> float:
    if not start or not end:
        return 0.0
    begun, ended = map(datetime.datetime.fromisoformat, (start, end))
    return max(0.0, (ended - begun).total_seconds())
