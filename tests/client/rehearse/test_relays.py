"""Relays before two replicas: the test connects as one of them, and serves as the other."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator

import pytest

from testing import waiting
from tfparallel.rehearse import relays, tcp_sockets

pytestmark = [
    pytest.mark.usefixtures("processes"),
    pytest.mark.skipif(not tcp_sockets.CAN_LIST, reason="only Linux lists its sockets"),
]

GONE = 1 << 23
"""Larger than the id of any process."""

Stream = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class World:
    """A network of worker-0 and worker-1, which answers each connection once that has ended."""

    def __init__(self) -> None:
        self.network = relays.RelayNetwork(["worker-0", "worker-1"])
        self.process_ids = {"worker-0": os.getpid(), "worker-1": GONE, "chief-0": GONE}
        self.received: list[bytes] = []
        self.resets = 0

    async def serve(self) -> asyncio.Server:
        """Listen at the own address of worker-1."""
        return await asyncio.start_server(self._answer, *self._parse("address"))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            self.received.append(await reader.read())
            writer.write(b"yes")
        except ConnectionResetError:
            self.resets += 1
        writer.close()

    async def connect(self) -> Stream:
        """Connect to the relay before worker-1."""
        return await asyncio.open_connection(*self._parse("relay"))

    async def connects(self) -> bool:
        """Whether the relay accepts a connection."""
        try:
            _, writer = await self.connect()
        except ConnectionError:
            return False
        writer.close()
        return True

    def cut(self) -> None:
        self.network.cut(self.network.addresses, dict(self.process_ids))

    def _parse(self, field: str) -> tuple[str, int]:
        host, port = getattr(self.network.addresses["worker-1"], field).split(":")
        return host, int(port)


@pytest.fixture
async def world() -> AsyncIterator[World]:
    world = World()
    running = asyncio.create_task(world.network.run(lambda: world.process_ids))
    yield world
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def ask(stream: Stream, question: bytes) -> bytes:
    reader, writer = stream
    writer.write(question)
    writer.write_eof()
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_relay_listens_while_its_replica_does(world: World) -> None:
    assert not await world.connects()
    server = await world.serve()
    await waiting.until_async(world.connects, "the relay listens")
    assert await ask(await world.connect(), b"there?") == b"yes"
    assert b"there?" in world.received
    server.close()

    async def refuses() -> bool:
        return not await world.connects()

    await waiting.until_async(refuses, "the relay does not listen")


async def test_a_cut_hangs_old_and_new_connections_until_a_replica_restarts(world: World) -> None:
    async with await world.serve():
        await waiting.until_async(world.connects, "the relay listens")
        before = await world.connect()
        assert await ask(await world.connect(), b"first") == b"yes"
        world.cut()
        during = await world.connect()
        questions = [asyncio.create_task(ask(stream, b"lost")) for stream in (before, during)]
        del world.process_ids["chief-0"]  # has ended, and does not run yet
        await asyncio.wait(questions, timeout=2 * relays._POLL_SECONDS)
        assert not any(question.done() for question in questions)
        world.process_ids["chief-0"] = GONE + 1
        for question in questions:
            with pytest.raises(ConnectionResetError):
                await question
        assert await ask(await world.connect(), b"again") == b"yes"
    assert [text for text in world.received if text] == [b"first", b"again"]


async def test_a_reset_ends_a_connection_and_no_relay(world: World) -> None:
    async with await world.serve():
        await waiting.until_async(world.connects, "the relay listens")
        _, writer = await world.connect()
        writer.write(b"part of a question")
        relays.reset(writer)
        await waiting.until_in_loop(lambda: world.resets, "the reset reaches the other side")
        assert await ask(await world.connect(), b"another") == b"yes"


async def test_others_pass_a_cut(world: World) -> None:
    world.process_ids = {"worker-0": GONE + 1, "worker-1": GONE, "chief-0": os.getpid()}
    async with await world.serve():
        await waiting.until_async(world.connects, "the relay listens")
        world.cut()
        assert await ask(await world.connect(), b"chief") == b"yes"


def test_a_socket_is_held_by_a_process_and_by_its_parent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        [listed] = [entry for entry in tcp_sockets.list_sockets() if entry.port == port]
        assert listed.is_listening
        assert tcp_sockets.is_held(listed.inode, os.getpid())
        assert tcp_sockets.is_held(listed.inode, os.getppid())
        assert not tcp_sockets.is_held(listed.inode, GONE)
