"""The progress endpoint on loopback, with the same path, payload and token as in a cluster."""

import contextlib
import hmac
from collections.abc import AsyncIterator, Callable

import pydantic
from aiohttp import web

from tfparallel.backends.local import ports
from tfparallel_operator.api import types
from tfparallel_operator.core.pods import progress_report
from tfparallel_trainer.contract import agents, limits, progress

AGENTS_PATH = "/agents"
"""Path at which the agent of a pod asks, with the pod's name below it."""


@contextlib.asynccontextmanager
async def endpoint(
    job: types.TFParallelJob,
    token: str,
    take: Callable[[progress.Report], None],
    respond: Callable[[str, agents.RunEnd], agents.AgentResponse],
) -> AsyncIterator[str]:
    """Serve a job's progress and its agents while the context lasts; give the address."""

    def check_token(request: web.Request) -> None:
        authorization = request.headers.get("Authorization", "")
        received = authorization.encode(errors="surrogateescape")  # as it was sent
        if not hmac.compare_digest(received, f"Bearer {token}".encode()):
            raise web.HTTPUnauthorized(text="the bearer token is not the job's")

    async def receive(request: web.Request) -> web.Response:
        check_token(request)
        try:
            report = progress.Report.model_validate_json(await request.read())
        except pydantic.ValidationError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        take(report)
        return web.Response(status=204)

    async def answer(request: web.Request) -> web.Response:
        check_token(request)
        try:
            end = agents.RunEnd.model_validate_json(await request.read())
        except pydantic.ValidationError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        answered = respond(request.match_info["pod"], end)
        return web.json_response(text=answered.model_dump_json(by_alias=True))

    application = web.Application(client_max_size=limits.MAX_BODY_BYTES)
    path = progress_report.path(job.metadata.namespace, job.metadata.name)
    application.router.add_post(path, receive)
    application.router.add_post(f"{AGENTS_PATH}/{{pod}}", answer)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, ports.HOST, 0).start()
        yield f"http://{ports.HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
