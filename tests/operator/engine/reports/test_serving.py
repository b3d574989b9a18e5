"""Connections that are too many, say nothing or last too long: others are served all the same."""

import asyncio
import contextlib
import dataclasses
import datetime
import gc
import logging
import resource
import socket
import ssl
from asyncio import sslproto
from collections.abc import AsyncIterator

import aiohttp
import pytest
from aiohttp import web

from testing import waiting
from tfparallel_operator.engine.reports import connections, serving, tls

HOST = "127.0.0.1"
NOW = datetime.datetime.now(datetime.UTC)
BUNDLE = tls.renew(None, HOST, NOW)


@dataclasses.dataclass(eq=False)
class Fake:
    """A connection of the bookkeeping alone."""

    address: str
    is_closed: bool = False


def _filled(counts: dict[str, int]) -> tuple[connections.Connections[Fake], dict[str, list[Fake]]]:
    book: connections.Connections[Fake] = connections.Connections()
    opened = {address: [Fake(address) for _ in range(count)] for address, count in counts.items()}
    for of_address in opened.values():
        for connection in of_address:
            assert book.add(connection) is None
    return book, opened


def test_an_address_that_opens_too_many_connections_loses_its_oldest() -> None:
    book, opened = _filled({"a": connections.MAX_OF_ADDRESS, "b": 1})
    assert book.add(Fake("a")) is opened["a"][0]
    assert book.add(Fake("a")) is opened["a"][1]
    assert book.add(Fake("b")) is None
    assert len(book) == connections.MAX_OF_ADDRESS + 2


def test_of_too_many_connections_the_address_with_the_most_loses_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", connections.MAX_CONNECTIONS // 8)
    full, remaining = divmod(connections.MAX_CONNECTIONS - 1, connections.MAX_OF_ADDRESS)
    counts = {f"flood-{number}": connections.MAX_OF_ADDRESS for number in range(full)}
    book, opened = _filled({"probe": 1, **counts, "last": remaining})
    assert book.add(Fake("new")) is opened["flood-0"][0]
    assert book.add(Fake("newer")) is opened["flood-1"][0]
    assert len(book) == connections.MAX_CONNECTIONS


def test_a_connection_that_is_closed_makes_room() -> None:
    book, opened = _filled({"a": connections.MAX_OF_ADDRESS})
    opened["a"][3].is_closed = True
    assert book.add(Fake("a")) is None
    for connection in opened["a"]:
        connection.is_closed = True
    book.forget_closed()
    assert len(book) == 1


@dataclasses.dataclass
class Served:
    """A server on loopback, and what its clients have open."""

    address: tuple[str, int]
    is_secure: bool

    async def get(self, path: str = "/") -> tuple[int, str]:
        context = ssl.create_default_context(cadata=BUNDLE.authorities)
        connector = aiohttp.TCPConnector(ssl=context, force_close=True)
        scheme = "https" if self.is_secure else "http"
        async with aiohttp.ClientSession(connector=connector) as http:
            url = f"{scheme}://{self.address[0]}:{self.address[1]}{path}"
            async with http.get(url) as answer:
                return answer.status, await answer.text()

    async def connect(
        self, source: str = HOST, *, handshake: bool = False
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Open a connection that says no more than the handshake, if that."""
        context = ssl.create_default_context(cadata=BUNDLE.authorities) if handshake else None
        return await asyncio.open_connection(*self.address, local_addr=(source, 0), ssl=context)


@contextlib.asynccontextmanager
async def _serving(*, secure: bool) -> AsyncIterator[Served]:
    async def greet(_: web.Request) -> web.Response:
        return web.Response(text="hello")

    async def fail(request: web.Request) -> web.Response:
        raise KeyError(request.path)

    application = web.Application()
    application.add_routes([web.get("/", greet), web.get("/fail", fail)])
    context = BUNDLE.context() if secure else None
    with socket.create_server((HOST, 0)) as listener:
        task = asyncio.create_task(serving.serve_on(listener, application, context))
        try:
            yield Served(listener.getsockname(), secure)
        finally:
            task.cancel()
            await asyncio.wait([task])
            await asyncio.sleep(0.1)  # Transports that were aborted close their sockets.


@pytest.mark.parametrize("secure", [True, False], ids=["reports", "probes"])
async def test_connections_that_say_nothing_are_bounded_and_others_are_served(
    secure: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 8)
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 16)
    monkeypatch.setattr(serving, "HANDSHAKE_SECONDS", 600.0)
    monkeypatch.setattr(serving, "HEADER_SECONDS", 600.0)
    async with _serving(secure=secure) as served:
        silent = [await served.connect(f"127.0.0.{2 + number % 3}") for number in range(30)]
        assert await served.get() == (200, "hello"), "from an address of its own"
        readers = [reader for reader, _ in silent]
        reading = [asyncio.ensure_future(reader.read()) for reader in readers]

        async def ended() -> int:
            return sum(task.done() for task in reading)

        # The server's own count: those of clients say nothing of what is on its way.
        await waiting.until_async(ended, "all but the bound are closed", when=lambda n: n >= 14)
        assert await ended() <= 15
        assert [task.done() for task in reading[-12:]] == [False] * 12, "the newest stay"
        for task in reading:
            task.cancel()
        await asyncio.gather(*reading, return_exceptions=True)
        for _, writer in silent:
            writer.close()


async def test_a_client_is_served_while_its_own_address_floods(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(connections, "MAX_OF_ADDRESS", 4)
    async with _serving(secure=True) as served:
        flooding = True

        async def flood() -> int:
            count = 0
            while flooding:
                _, writer = await served.connect()
                writer.close()
                count += 1
            return count

        async def is_answered() -> bool:
            reader, writer = await served.connect(handshake=True)
            writer.write(b"GET / HTTP/1.0\r\n\r\n")
            answer = await reader.read()
            writer.close()
            return answer.endswith(b"hello")

        task = asyncio.create_task(flood())
        for _ in range(5):
            await waiting.until_async(is_answered, "an answer; a pod sends a report again, too")
        flooding = False
        assert await task > 0


@pytest.mark.parametrize(
    ("secure", "handshake", "limit"),
    [
        (True, False, "HANDSHAKE_SECONDS"),
        (True, True, "HEADER_SECONDS"),
        (False, False, "HEADER_SECONDS"),
        (True, False, "CONNECTION_SECONDS"),
        (False, False, "CONNECTION_SECONDS"),
    ],
)
@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: "])
async def test_a_client_that_takes_too_long_is_disconnected(
    secure: bool, handshake: bool, limit: str, sent: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HANDSHAKE_SECONDS", "HEADER_SECONDS", "CONNECTION_SECONDS"):
        monkeypatch.setattr(serving, name, 0.2 if name == limit else 600.0)
    monkeypatch.setattr(serving, "CHECK_SECONDS", 0.05)
    async with _serving(secure=secure) as served, asyncio.timeout(waiting.LIMIT_SECONDS):
        reader, writer = await served.connect(handshake=handshake)
        if handshake or not secure:
            writer.write(sent)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()


async def test_a_failure_in_one_request_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with _serving(secure=False) as served:
        for _ in range(50):
            status, text = await served.get("/fail")
            assert status == 500
            assert "Traceback" not in text
    lines = [record.getMessage() for record in caplog.records if record.levelno > logging.INFO]
    assert len(lines) == 10
    assert all("KeyError: '/fail' (test_serving.py:" in line for line in lines)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.parametrize(
    "request_line",
    [b"GET /\xff HTTP/1.1", b"GET /%ff%00 HTTP/1.1", b"\x00\x01\x02", b"GET", b"GET //[ HTTP/1.1"],
    ids=ascii,
)
async def test_a_request_that_is_none_is_answered(request_line: bytes) -> None:
    async with _serving(secure=False) as served, asyncio.timeout(waiting.LIMIT_SECONDS):
        reader, writer = await served.connect()
        writer.write(request_line + b"\r\nHost: x\r\nConnection: close\r\n\r\n")
        status = (await reader.read()).split(b" ", 2)[1]
        assert status in (b"400", b"404")
        writer.close()
        assert await served.get() == (200, "hello")


async def test_a_process_with_too_many_files_accepts_again_once_it_can() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    async with _serving(secure=False) as served:
        client = socket.socket()
        client.setblocking(False)
        resource.setrlimit(resource.RLIMIT_NOFILE, (client.fileno() + 1, hard))
        try:
            await asyncio.get_running_loop().sock_connect(client, served.address)
            await asyncio.sleep(2 * serving.ACCEPT_AGAIN_SECONDS)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        client.close()
        assert await served.get() == (200, "hello")


@pytest.mark.usefixtures("processes")  # it listens on all interfaces
async def test_a_server_that_is_cancelled_closes_its_sockets() -> None:
    with serving.listen(0) as free:
        port = free.getsockname()[1]
    for _ in range(2):
        task = asyncio.create_task(serving.serve(web.Application(), port))
        await asyncio.sleep(0)
        reader, writer = await asyncio.open_connection(HOST, port)
        task.cancel()
        await asyncio.wait([task])
        assert await reader.read() == b""
        writer.close()


async def test_a_handshake_that_fails_leaves_no_garbage_behind() -> None:
    """Its buffers are 256 KiB: a flood would fill the memory before they are searched for."""
    gc.collect()
    gc.disable()
    try:
        async with _serving(secure=True) as served:
            for sent in (b"", b"GET / HTTP/1.1\r\n\r\n") * 10:
                _, writer = await served.connect()
                writer.write(sent)
                writer.close()
                await writer.wait_closed()
            await served.get()
            await waiting.until_in_loop(_count_buffers, "no buffer is left", when=lambda n: n == 0)
    finally:
        gc.enable()


def _count_buffers() -> int:
    return sum(
        isinstance(protocol, sslproto.SSLProtocol) and protocol._server_side
        for protocol in gc.get_objects()
    )
