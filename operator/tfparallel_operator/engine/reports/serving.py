"""Serves an HTTP application as a member of a task group, however many connect and stay silent.

A connection counts from the moment it is accepted, before TLS. asyncio's own server tells nobody of
one until its handshake is over, and keeps up to 300 kB for each.
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
"""How long a TLS handshake may take."""

HEADER_SECONDS = 10.0
"""How long the head of a request may take, and the pause before the next one."""

CONNECTION_SECONDS = 60.0
"""How long a connection may last."""

MAX_HEADERS = 32
"""Headers of a request; each has 8 KiB at most."""

LINGERING_SECONDS = 0.5
"""How long the rest of a body that is refused is read, so that the client sees the answer."""

CHECK_SECONDS = 1.0

ACCEPT_AGAIN_SECONDS = 0.1
"""Pause after a connection that could not be accepted, as when the process has too many files."""

_BACKLOG = 128
_IPV4_MAPPED = "::ffff:"

_LOG = logging.getLogger(__name__)


async def serve(application: web.Application, port: int, tls: ssl.SSLContext | None = None) -> None:
    """Serve on all addresses until cancelled.

    Args:
        application: what answers.
        port: the port; 0: a free one.
        tls: certificates; None: plain HTTP.
    """
    with listen(port) as listener:
        await serve_on(listener, application, tls)


def listen(port: int) -> socket.socket:
    """Return a socket that listens on all addresses, of IPv6 too where the machine has it."""
    if socket.has_dualstack_ipv6():
        with contextlib.suppress(OSError):  # Some machines have no more than the protocol.
            return socket.create_server(
                ("", port), family=socket.AF_INET6, backlog=_BACKLOG, dualstack_ipv6=True
            )
    return socket.create_server(("", port), backlog=_BACKLOG)


async def serve_on(
    listener: socket.socket, application: web.Application, tls: ssl.SSLContext | None = None
) -> None:
    """Serve what connects to a socket until cancelled."""
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
    """An accepted socket and what will answer on it."""

    address: str
    socket: socket.socket
    handler: web_protocol.RequestHandler
    accepted_at: float

    @property
    def is_closed(self) -> bool:
        """Whether its transport has closed the socket."""
        return self.socket.fileno() < 0

    def abort(self) -> None:
        """End it at once, whatever it waits for."""
        if self.handler.transport is not None:
            self.handler.transport.abort()
        elif not self.is_closed:  # During the handshake, or while it is being closed.
            with contextlib.suppress(OSError):
                self.socket.shutdown(socket.SHUT_RDWR)


class _Server:
    """Accepts connections, and closes those that are too many or last too long."""

    def __init__(
        self, listener: socket.socket, handlers: web.Server, tls: ssl.SSLContext | None
    ) -> None:
        self._listener = listener
        self._handlers = handlers
        self._tls = tls
        self._connections: connections.Connections[_Connection] = connections.Connections()

    async def run(self) -> None:
        """Do it forever."""
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
        """Abort what is still open."""
        for connection in self._connections:
            connection.abort()

    def _admit(self, accepted: socket.socket, host: str) -> _Connection:
        """Let a connection in, in place of an older one if there are too many."""
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
                connection.socket,
                ssl=self._tls,
                ssl_handshake_timeout=limits[0],
                ssl_shutdown_timeout=limits[1],
            )
        except OSError as error:  # TLS errors and timeouts too: it is the client's.
            # Its frames hold the error and 256 KiB of buffers, until a search for garbage.
            error.__traceback__ = error.__context__ = None

    async def _close_overdue(self) -> None:
        while True:
            self._connections.forget_closed()
            for connection in self._connections:
                if time.monotonic() - connection.accepted_at > CONNECTION_SECONDS:
                    connection.abort()
            await asyncio.sleep(CHECK_SECONDS)
