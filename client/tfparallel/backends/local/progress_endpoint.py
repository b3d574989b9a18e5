"""The progress endpoint on loopback, with the same path, payload and token as in a cluster."""

import contextlib
import hmac
from collections.abc import AsyncIterator, Callable

import pydantic
from aiohttp import web

from tfparallel.backends.local import ports
from tfparallel_operator.api import types
from tfparallel_operator.core.pods import progress_report
from tfparallel_trainer.contract import limits, progress


@contextlib.asynccontextmanager
async def endpoint(
    job: types.TFParallelJob, token: str, take: Callable[[progress.Report], None]
) -> AsyncIterator[str]:
    """Serve the job's progress for as long as the context lasts; give the endpoint's address."""

    async def receive(request: web.Request) -> web.Response:
        authorization = request.headers.get("Authorization", "")
        received = authorization.encode(errors="surrogateescape")  # as it was sent
        if not hmac.compare_digest(received, f"Bearer {token}".encode()):
            raise web.HTTPUnauthorized(text="the bearer token is not the job's")
        try:
            report = progress.Report.model_validate_json(await request.read())
        except pydantic.ValidationError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        take(report)
        return web.Response(status=204)

    application = web.Application(client_max_size=limits.MAX_BODY_BYTES)
    path = progress_report.path(job.metadata.namespace, job.metadata.name)
    application.router.add_post(path, receive)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        await web.TCPSite(runner, ports.HOST, 0).start()
        yield f"http://{ports.HOST}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
