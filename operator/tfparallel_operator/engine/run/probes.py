"""Liveness and readiness over plain HTTP, with the reason when the answer is no."""

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from tfparallel_operator.engine.observe import children
from tfparallel_operator.engine.workqueue import queue

SILENCE_LIMIT_SECONDS = 180.0
"""An informer that for so long heard nothing, not even a bookmark, and did not try is stuck."""

KEY_LIMIT_SECONDS = 600.0
"""For so long a worker is busy with one job, or none takes a job that waits: it is stuck."""

Check = Callable[[], str]
"""Returns what is wrong; empty: nothing."""


def application(healthy: Check, ready: Check, *more: web.RouteDef) -> web.Application:
    """Build the application with /healthz and /readyz, and more routes."""
    app = web.Application()
    checks = (web.get("/healthz", _handler(healthy)), web.get("/readyz", _handler(ready)))
    app.add_routes([*checks, *more])
    return app


def healthy(job_children: children.Children, work: queue.Queue[queue.Key]) -> str:
    """Say whether the process is stuck: answering at all shows that its event loop is not."""
    silence = job_children.silence(time.monotonic())
    if silence > SILENCE_LIMIT_SECONDS:
        return f"no event, bookmark or attempt of a watch for {silence:.0f} s"
    stuck = work.stuck()
    if stuck > KEY_LIMIT_SECONDS:
        return f"no worker has taken a job that waits, or one been busy with one, for {stuck:.0f} s"
    return ""


def ready(job_children: children.Children, jobs_listed: bool) -> str:
    """Say whether decisions are made yet."""
    if not job_children.synced:
        return "the children of the jobs have not been listed yet"
    return "" if jobs_listed else "the jobs have not been listed yet"


def _handler(check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        problem = check()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return handle
