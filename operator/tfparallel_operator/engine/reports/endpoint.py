"""The progress endpoint: takes the reports of coordinators, and refuses everyone else's."""

import asyncio
import dataclasses

import pydantic
from aiohttp import web

from tfparallel_operator import wall_clock
from tfparallel_operator.api_server import errors
from tfparallel_operator.core.pods import progress_report
from tfparallel_operator.engine.observe import children, jobs, records
from tfparallel_operator.engine.reports import tokens
from tfparallel_operator.engine.telemetry import metrics
from tfparallel_operator.engine.workqueue import queue
from tfparallel_operator.engine.write import publisher
from tfparallel_trainer.contract import limits, progress

BODY_SECONDS = 10.0
"""How long a report may take to arrive."""

_SCHEME = "Bearer "

_INVALID = (
    f"the token is not valid for audience {progress_report.audience('UID')}, where UID is the"
    " job's, or belongs to no pod"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Endpoint:
    """Answers POSTs of progress."""

    all_jobs: jobs.Jobs
    job_children: children.Children
    reviews: tokens.Tokens
    reports: publisher.Publisher
    counters: metrics.Metrics = dataclasses.field(default_factory=metrics.Metrics)
    clock: wall_clock.Clock = wall_clock.utc_now

    def application(self) -> web.Application:
        """Build the application with the one route."""
        app = web.Application(client_max_size=limits.MAX_BODY_BYTES)
        app.add_routes([web.post(progress_report.path("{namespace}", "{name}"), self._handle)])
        return app

    async def _handle(self, request: web.Request) -> web.Response:
        answer = await self._answer(request)
        self.counters.reported(answer.status)
        return answer

    async def _answer(self, request: web.Request) -> web.Response:
        try:
            await self._accept(request)
        except web.HTTPRequestEntityTooLarge:
            limit = limits.MAX_BODY_BYTES
            return _refuse(413, f"the report is larger than {limit} bytes: send fewer metrics")
        except _Refusal as refusal:
            return _refuse(refusal.status, str(refusal))
        except TimeoutError:
            return _refuse(408, f"the report did not arrive within {BODY_SECONDS:.0f} s")
        except errors.ApiError as error:
            return _refuse(503, f"the token cannot be checked now: {error}")
        return web.json_response({"accepted": True}, status=202)

    async def _accept(self, request: web.Request) -> None:
        key = queue.Key(request.match_info["namespace"], request.match_info["name"])
        authorization = request.headers.get("Authorization", "")
        if not authorization.startswith(_SCHEME):
            raise _Refusal(401, "send the pod's projected token as Authorization: Bearer")
        token = authorization.removeprefix(_SCHEME)
        source = request.remote or ""
        body = self.all_jobs.get(key)
        if body is None:
            # Only who holds the token of some job learns which there are.
            if not await self._holds_any(token, source):
                raise _Refusal(401, _INVALID)
            raise _Refusal(404, f"there is no job {key.name!r} in namespace {key.namespace!r}")
        uid = body["metadata"]["uid"]
        await self._check(token, body, source)
        async with asyncio.timeout(BODY_SECONDS):
            content = await request.read()
        report = _parse(content)
        now = self.clock().replace(microsecond=0)
        self.reports.submit(publisher.Report(key, uid, report, now))

    async def _holds_any(self, token: str, source: str) -> bool:
        for audience in tokens.audiences(token)[:1]:
            return await self.reviews.pod_uid(token, audience, source) is not None
        return False

    async def _check(self, token: str, body: jobs.Body, source: str) -> None:
        uid, name = body["metadata"]["uid"], body["metadata"]["name"]
        audience = progress_report.audience(uid)
        pod_uid = await self.reviews.pod_uid(token, audience, source)
        if pod_uid is None:
            raise _Refusal(401, _INVALID)
        pods = self.job_children.of(records.as_owner(body)).pods
        pod = next((pod for pod in pods if pod.uid == pod_uid), None)
        if pod is None:
            raise _Refusal(403, f"the token's pod does not belong to job {name!r}")
        attempt = int((body.get("status") or {}).get("attempt", 0))
        if pod.attempt < attempt:
            raise _Refusal(403, f"pod {pod.name} is of attempt {pod.attempt}; {attempt} runs now")


class _Refusal(Exception):  # noqa: N818 (an answer)
    """Why a report is not taken."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def _parse(body: bytes) -> progress.Report:
    try:
        return progress.Report.model_validate_json(body)
    except pydantic.ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the report"
        raise _Refusal(422, f"{where}: received {first['input']!r:.80}; {first['msg']}") from error


def _refuse(status: int, message: str) -> web.Response:
    return web.json_response({"error": message}, status=status)
