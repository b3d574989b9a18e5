"""A real proxy on loopback, which leads every name to one port of this machine."""

import asyncio
import contextlib
import dataclasses
import functools
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable

from testing.cluster import forwarder

CLOSE_SECONDS = 30.0
_Handle = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@dataclasses.dataclass
class Proxy:
    """What the proxy has been asked for."""

    port: int = 0
    scheme: str = "http"
    requests: list[str] = dataclasses.field(default_factory=list)
    """The head of each request, as it came."""

    @property
    def url(self) -> str:
        return f"{self.scheme}://127.0.0.1:{self.port}"


@contextlib.asynccontextmanager
async def serving(
    target: int, refusal: str = "", tls: ssl.SSLContext | None = None
) -> AsyncIterator[Proxy]:
    """Serve CONNECT, or answer it with a status line such as `407 Proxy Authentication`."""
    proxy = Proxy(scheme="http" if tls is None else "https")

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        proxy.requests.append(head)
        assert head.startswith("CONNECT ")
        writer.write(f"HTTP/1.1 {refusal or '200 Connected'}\r\n\r\n".encode())
        if refusal:
            writer.close()
        else:
            await forwarder.connect("127.0.0.1", target, reader, writer)

    async with _listening("127.0.0.1", handle, tls) as port:
        proxy.port = port
        yield proxy


@contextlib.asynccontextmanager
async def forwarding(host: str, target: int) -> AsyncIterator[int]:
    """Lead an address of loopback to a port of this machine; yields the port there."""
    connect = functools.partial(forwarder.connect, "127.0.0.1", target)
    async with _listening(host, connect) as port:
        yield port


@contextlib.asynccontextmanager
async def _listening(
    host: str, handle: _Handle, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Serve connections, and wait for the end of those that clients have closed."""
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            await handle(reader, writer)
        finally:
            tasks.discard(task)

    async with await asyncio.start_server(serve, host, 0, ssl=tls) as server:
        yield int(server.sockets[0].getsockname()[1])
        async with asyncio.timeout(CLOSE_SECONDS):
            await asyncio.gather(*tasks)
