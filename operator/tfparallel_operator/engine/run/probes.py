"""Liveness and readiness over plain HTTP, with the reason when the answer is no."""

import time
from collections.abc import Awaitable, Callable

from aiohttp import web

from tfparallel_operator.engine.observe import children
from tfparallel_operator.engine.workqueue import queue

SILENCE_LIMIT_SECONDS = 180.0
"""An informer is stuck after this time without an event, a bookmark or an attempt."""

KEY_LIMIT_SECONDS = 600.0
"""The workers are stuck if one has had a job, or none has taken a queued job, for this time."""

Check = Callable[[], str]
"""Returns what is wrong; empty: nothing."""


def application(healthy: Check, ready: Check, *more: web.RouteDef) -> web.Application:
    """Build the application with /healthz and /readyz, and more routes."""
    app = web.Application()
    checks = (web.get("/healthz", _handler(healthy)), web.get("/readyz", _handler(ready)))
    app.add_routes([*checks, *more])
    return app


def healthy(job_children: children.ChildIndex, work: queue.Queue[queue.Key]) -> str:
    """Say why the process is stuck; empty: it is not. An answer shows that the event loop runs."""
    silence = job_children.silence(time.monotonic())
    if silence > SILENCE_LIMIT_SECONDS:
        return f"no event, bookmark or attempt of a watch for {silence:.0f} s"
    stuck = work.stuck()
    if stuck > KEY_LIMIT_SECONDS:
        return f"no worker has taken a job that waits, or one been busy with one, for {stuck:.0f} s"
    return ""


def ready(job_children: children.ChildIndex, jobs_listed: bool) -> str:
    """Say why the operator cannot decide yet; empty: it can."""
    if not job_children.synced:
        return "the children of the jobs have not been listed yet"
    return "" if jobs_listed else "the jobs have not been listed yet"


def _handler(check: Check) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
    async def handle(_: web.Request) -> web.StreamResponse:
        problem = check()
        return web.Response(text=problem or "ok", status=503 if problem else 200)

    return handle
