"""The progress endpoint: answers the pods of a job, and refuses all others.

The coordinator reports progress. Agents ask what follows a run of the trainer.
"""

import asyncio
import collections
import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pydantic
from aiohttp import web

from tfparallel_operator import wall_clock
from tfparallel_operator.api import job_status, load
from tfparallel_operator.api_server import errors
from tfparallel_operator.core import observation
from tfparallel_operator.core.life import in_place
from tfparallel_operator.core.pods import progress_report
from tfparallel_operator.core.view import is_of_attempt
from tfparallel_operator.engine.observe import children, jobs, records
from tfparallel_operator.engine.reports import tokens
from tfparallel_operator.engine.telemetry import logs, metrics
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import publisher
from tfparallel_trainer.contract import agents, base, limits, plain_text, progress

T = TypeVar("T", bound=base.Model)

_LOG = logging.getLogger(__name__)

BODY_SECONDS = 10.0
"""Maximum time for a report to arrive."""

REFUSAL_SECONDS = 0.25
"""Pause before a refusal, so that a flood over few connections costs little."""

_SCHEME = "Bearer "

_INVALID = (
    f"the token is not valid for audience {progress_report.audience('UID')}, where UID is the"
    " job's, or belongs to no pod"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Answers POSTs of progress, and questions of agents."""

    all_jobs: jobs.Jobs
    job_children: children.ChildIndex
    reviews: tokens.Tokens
    reports: publisher.Publisher
    requeue: Callable[[queue.Key], None]
    """Queues a job to be decided on."""
    counters: metrics.Metrics = dataclasses.field(default_factory=metrics.Metrics)
    clock: wall_clock.Clock = wall_clock.utc_now
    turns: "SendInterval" = dataclasses.field(
        default_factory=lambda: SendInterval(limits.MIN_SECONDS_BETWEEN_REPORTS)
    )
    log: logs.Brief = dataclasses.field(default_factory=lambda: logs.Brief(_LOG))

    def application(self) -> web.Application:
        """Build the application with its two routes."""
        app = web.Application(client_max_size=limits.MAX_BODY_BYTES, middlewares=[_pause])
        job = "{namespace}", "{name}"
        app.add_routes([web.post(progress_report.path(*job), self._handle)])
        app.add_routes([web.post(progress_report.agents_path(*job), self._handle_agent)])
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        answer = await self._answer(request, self._accept)
        self.counters.reported(answer.status)
        return answer

    async def _handle_agent(self, request: web.Request) -> web.Response:
        return await self._answer(request, self._respond)

    async def _answer(
        self,
        request: web.Request,
        accept: Callable[[web.Request], Awaitable[web.Response]],
    ) -> web.Response:
        try:
            return await accept(request)
        except web.HTTPRequestEntityTooLarge:
            limit = limits.MAX_BODY_BYTES
            return _refuse(413, f"the report is larger than {limit} bytes: send fewer metrics")
        except _Refusal as refusal:
            return _refuse(refusal.status, str(refusal), refusal.retry_after)
        except TimeoutError:
            return _refuse(408, f"the report did not arrive within {BODY_SECONDS:.0f} s")
        except web.RequestPayloadError:
            return _refuse(400, "the body ends before its end: send the report again")
        except errors.ApiError as error:
            self.log.warning("a token was not checked: %s", error)
            return _refuse(503, "the token cannot be checked now: send the report again later")
        except Exception as error:
            self.log.error("a report was not handled", exc_info=error)
            return _refuse(500, "the report cannot be handled: the operator's log says why")

    async def _accept(self, request: web.Request) -> web.Response:
        """Take a report of progress."""
        key = queue.Key(request.match_info["namespace"], request.match_info["name"])
        job, pod, _ = await self._authenticate(_token(request), key, request.remote or "")
        _check_attempt(pod, load.read_status(job))
        uid = str(job["metadata"]["uid"])
        if (seconds := self.turns.take(uid)) > 0:
            raise _Refusal(429, "the last report of the job has just arrived", seconds)
        report = _parse(progress.Report, await _read(request))
        now = self.clock().replace(microsecond=0)
        self.reports.submit(publisher.Report(key, uid, report, now))
        return web.json_response({"accepted": True}, status=202)

    async def _respond(self, request: web.Request) -> web.Response:
        """Answer the agent of a pod, and queue the job if the agent says something new."""
        key = queue.Key(request.match_info["namespace"], request.match_info["name"])
        job, pod, gang_size = await self._authenticate(_token(request), key, request.remote or "")
        end = _parse(agents.RunEnd, await _read(request))
        now = self.clock().replace(microsecond=0)
        if self.job_children.run_ends.record(pod, end, now):
            self.requeue(key)
        answer = in_place.answer(load.read_status(job), pod, end, gang_size)
        return web.json_response(text=answer.model_dump_json(by_alias=True))

    async def _authenticate(
        self, token: str, key: queue.Key, source: str
    ) -> tuple[jobs.Body, observation.Pod, int]:
        """Return the job of a request, the pod that its token belongs to, and how many pods it has.

        Every well-formed token is reviewed, whether the job exists or not. So neither the answer
        nor its delay reveals which jobs exist.
        """
        job = self.all_jobs.get(key)
        expected = None if job is None else progress_report.audience(job["metadata"]["uid"])
        claimed = tokens.audiences(token)
        if not claimed:
            raise _Refusal(401, _INVALID)
        audience = expected if expected in claimed else claimed[0]
        pod = await self.reviews.find_pod(token, audience, source)
        if pod is None or pod.namespace != key.namespace:
            raise _Refusal(401, _INVALID)
        if job is None and (seconds := self.turns.take(pod.uid)) > 0:
            raise _Refusal(429, "the pod has just sent another report", seconds)
        if job is None and self._is_of_a_job(pod, audience):
            raise _Refusal(404, f"there is no job {key.name!r} in namespace {key.namespace!r}")
        if job is None or audience != expected:
            raise _Refusal(401, _INVALID)
        pods = self.job_children.for_job(records.as_owner(job)).pods
        sender = next((of_job for of_job in pods if of_job.uid == pod.uid), None)
        if sender is None:
            raise _Refusal(403, f"the token's pod does not belong to job {key.name!r}")
        return job, sender, len(pods)

    def _is_of_a_job(self, pod: tokens.TokenPod, audience: str) -> bool:
        """Whether a token's pod belongs to the job that its audience names."""
        return any(
            pod.uid == pod_of_job.uid
            for job in self.all_jobs.bodies()
            if progress_report.audience(job["metadata"]["uid"]) == audience
            and job["metadata"]["namespace"] == pod.namespace
            for pod_of_job in self.job_children.for_job(records.as_owner(job)).pods
        )


def _check_attempt(pod: observation.Pod, status: job_status.JobStatus) -> None:
    """Refuse a report of an earlier attempt."""
    if pod.attempt < status.attempt and not is_of_attempt(pod, status):
        attempts = f"of attempt {pod.attempt}; {status.attempt} runs now"
        raise _Refusal(403, f"pod {pod.name} is {attempts}")


@web.middleware
async def _pause(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Pause before each refusal, including unknown paths."""
    try:
        answer = await handler(request)
    except web.HTTPException:
        await asyncio.sleep(REFUSAL_SECONDS)
        raise
    if answer.status >= 400:
        await asyncio.sleep(REFUSAL_SECONDS)
    return answer


class SendInterval:
    """Allows each key once per interval, and forgets older keys."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds = seconds
        self._clock = clock
        self._sent_at: collections.OrderedDict[str, float] = collections.OrderedDict()

    def take(self, key: str) -> float:
        """Take a key's turn and return 0, or return the seconds until its next turn."""
        now = self._clock()
        while self._sent_at and next(iter(self._sent_at.values())) + self._seconds <= now:
            self._sent_at.popitem(last=False)
        if key in self._sent_at:
            return self._sent_at[key] + self._seconds - now
        self._sent_at[key] = now
        return 0.0


class _Refusal(Exception):  # noqa: N818 (an answer)
    """Why a report is refused."""

    def __init__(self, status: int, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.retry_after = retry_after


def _token(request: web.Request) -> str:
    authorization = request.headers.get("Authorization", "")
    if not authorization.startswith(_SCHEME):
        raise _Refusal(401, "send the pod's projected token as Authorization: Bearer")
    return authorization.removeprefix(_SCHEME)


async def _read(request: web.Request) -> bytes:
    if request.headers.get("Content-Encoding", "identity") != "identity":
        raise _Refusal(415, "the body is compressed: send it as JSON, without Content-Encoding")
    async with asyncio.timeout(BODY_SECONDS):
        return await request.read()


def _parse(kind: type[T], body: bytes) -> T:
    try:
        return kind.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = plain_text.shorten(".".join(map(str, first["loc"])), 120) or "the report"
        raise _Refusal(422, f"{where}: received {first['input']!r:.80}; {first['msg']}") from error


def _refuse(status: int, message: str, retry_after: float | None = None) -> web.Response:
    headers = {} if retry_after is None else {"Retry-After": str(math.ceil(retry_after))}
    return web.json_response({"error": message}, status=status, headers=headers)
