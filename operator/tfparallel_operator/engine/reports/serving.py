"""Serves an HTTP application in a task group, even if many clients connect and stay silent.

A connection counts from the moment it is accepted, before TLS. asyncio's own server reports a
connection only after its handshake, and keeps up to 300 kB for each.
"""

import asyncio
import contextlib
import dataclasses
import logging
import socket
import ssl
import time

from aiohttp import web, web_protocol

from tfparallel_operator.engine.reports import connections
from tfparallel_operator.engine.telemetry import logs

SHUTDOWN_SECONDS = 1.0

HANDSHAKE_SECONDS = 5.0
"""Maximum duration of a TLS handshake."""

HEADER_SECONDS = 10.0
"""Maximum time for the headers of a request, and between two requests."""

CONNECTION_SECONDS = 60.0
"""Maximum duration of a connection."""

MAX_HEADERS = 32
"""Maximum number of headers of a request; each has at most 8 KiB."""

LINGERING_SECONDS = 0.5
"""How long the server reads a refused body to its end, so that the client sees the answer."""

CHECK_SECONDS = 1.0

ACCEPT_AGAIN_SECONDS = 0.1
"""Pause after a failed accept, for example because the process has too many open files."""

_BACKLOG = 128
_IPV4_MAPPED = "::ffff:"

_LOG = logging.getLogger(__name__)


async def serve(application: web.Application, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Serve on all addresses until cancelled.

    Args:
        port: the port; 0: a free one.
        tls: the context of TLS; None: plain HTTP.
    """
    with listen(port) as listener:
        await serve_on(listener, application, tls)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, including IPv6 if the machine has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # Some machines have the protocol but no addresses.
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", port), backlog=_BACKLOG)


async def serve_on(
    listener: socket.socket, application: web.Application, tls: ssl.SSLContext | None = None
) -> None:
    """Serve on a listening socket until cancelled."""
    listener.setblocking(False)
    runner = web.AppRunner(
        application,
        access_log=None,
        handle_signals=False,
        shutdown_timeout=SHUTDOWN_SECONDS,
        lingering_time=LINGERING_SECONDS,
        keepalive_timeout=HEADER_SECONDS,
        max_headers=MAX_HEADERS,
        auto_decompress=False,  # A small body could become a large one.
        logger=logs.Brief(_LOG),
    )
    await runner.setup()
    if runner.server is None:
        raise RuntimeError("aiohttp has set up no server")
    server = _Server(listener, runner.server, tls)
    try:
        await server.run()
    finally:
        await runner.cleanup()
        server.close_all()


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Connection:
    """An accepted socket and its request handler."""

    address: str
    accepted: socket.socket
    handler: web_protocol.RequestHandler
    accepted_at: float

    @property
    def is_closed(self) -> bool:
        """Whether its transport has closed the socket."""
        return self.accepted.fileno() < 0

    def abort(self) -> None:
        """Close the connection at once."""
        if self.handler.transport is not None:
            self.handler.transport.abort()
        elif not self.is_closed:  # During the handshake, or while it is being closed.
            with contextlib.suppress(OSError):
                self.accepted.shutdown(socket.SHUT_RDWR)


class _Server:
    """Accepts connections, and closes those beyond the limits."""

    def __init__(
        self, listener: socket.socket, handlers: web.Server, tls: ssl.SSLContext | None
    ) -> None:
        self._listener = listener
        self._handlers = handlers
        self._tls = tls
        self._connections: connections.Connections[_Connection] = connections.Connections()

    async def run(self) -> None:
        """Accept connections until cancelled."""
        loop = asyncio.get_running_loop()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._close_overdue())
            while True:
                try:
                    accepted, peer = await loop.sock_accept(self._listener)
                except OSError:
                    await asyncio.sleep(ACCEPT_AGAIN_SECONDS)
                else:
                    group.create_task(self._shake_hands(self._admit(accepted, peer[0])))
                    await asyncio.sleep(0)  # A flood of connections leaves the loop to others.

    def close_all(self) -> None:
        """Close all connections."""
        for connection in self._connections:
            connection.abort()

    def _admit(self, accepted: socket.socket, host: str) -> _Connection:
        """Admit a connection, and close an older one if there are too many."""
        address = host.removeprefix(_IPV4_MAPPED)
        connection = _Connection(address, accepted, self._handlers(), time.monotonic())
        displaced = self._connections.add(connection)
        if displaced is not None:
            displaced.abort()
        return connection

    async def _shake_hands(self, connection: _Connection) -> None:
        limits = (HANDSHAKE_SECONDS, SHUTDOWN_SECONDS) if self._tls else (None, None)
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: connection.handler,
                connection.accepted,
                ssl=self._tls,
                ssl_handshake_timeout=limits[0],
                ssl_shutdown_timeout=limits[1],
            )
        except OSError as error:  # TLS errors and timeouts, too: the client's fault.
            # The traceback would keep 256 KiB of buffers until the next garbage collection.
            error.__traceback__ = error.__context__ = None

    async def _close_overdue(self) -> None:
        while True:
            self._connections.forget_closed()
            for connection in self._connections:
                if time.monotonic() - connection.accepted_at > CONNECTION_SECONDS:
                    connection.abort()
            await asyncio.sleep(CHECK_SECONDS)
