"""Serves an HTTP application as a member of a task group."""

import asyncio
import ssl
import time
from collections.abc import Mapping
from typing import TypeVar

from aiohttp import web

C = TypeVar("C")

SHUTDOWN_SECONDS = 1.0

MAX_CONNECTIONS = 256
"""Connections of a server; above that the oldest are closed."""

CONNECTION_SECONDS = 60.0
"""How long a connection may last: aiohttp itself waits for a request forever."""

LINGERING_SECONDS = 0.5
"""How long the rest of a body that is refused is read, so that the client sees the answer."""

CHECK_SECONDS = 1.0


async def serve(
    application: web.Application,
    port: int,
    tls: ssl.SSLContext | None = None,
) -> None:
    """Serve on all addresses until cancelled.

    Args:
        application: what answers.
        port: the port; 0: a free one.
        tls: certificates; None: plain HTTP.
    """
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_SECONDS,
        lingering_time=LINGERING_SECONDS,
    )
    await runner.setup()
    starting = asyncio.create_task(web.TCPSite(runner, port=port, ssl_context=tls).start())
    try:
        await asyncio.shield(starting)
        await close_old(runner)
    finally:
        # asyncio loses the sockets of a server that is cancelled while it starts.
        await asyncio.wait([starting])
        await runner.cleanup()


async def close_old(runner: web.BaseRunner) -> None:
    """Close connections that have lasted too long, or are too many, forever."""
    opened_at: dict[web.RequestHandler, float] = {}
    while True:
        now, server = time.monotonic(), runner.server
        connections = () if server is None else server.connections
        opened_at = {one: opened_at.get(one, now) for one in connections}
        for connection in excess(opened_at, now):
            connection.force_close()  # `close` leaves those open that never sent a request.
        await asyncio.sleep(CHECK_SECONDS)


def excess(opened_at: Mapping[C, float], now: float) -> list[C]:
    """Return the connections to close, given when each was opened, the oldest first."""
    surplus = len(opened_at) - MAX_CONNECTIONS
    return [
        connection
        for index, (connection, opened) in enumerate(opened_at.items())
        if index < surplus or now - opened > CONNECTION_SECONDS
    ]
