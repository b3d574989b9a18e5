"""Serves an HTTP application as a member of a task group."""

import asyncio
import ssl
from collections.abc import Callable

from aiohttp import web

SHUTDOWN_SECONDS = 1.0


async def serve(
    application: web.Application,
    port: int,
    tls: ssl.SSLContext | None = None,
    bound: Callable[[int], None] | None = None,
) -> None:
    """Serve on all addresses until cancelled.

    Args:
        application: what answers.
        port: the port; 0: a free one.
        tls: certificates; None: plain HTTP.
        bound: told of the port once it listens.
    """
    runner = web.AppRunner(
        application, access_log=None, handle_signals=False, shutdown_timeout=SHUTDOWN_SECONDS
    )
    await runner.setup()
    starting = asyncio.create_task(web.TCPSite(runner, port=port, ssl_context=tls).start())
    try:
        await asyncio.shield(starting)
        if bound is not None:
            bound(runner.addresses[0][1])
        await asyncio.get_running_loop().create_future()
    finally:
        # asyncio loses the sockets of a server that is cancelled while it starts.
        await asyncio.wait([starting])
        await runner.cleanup()
