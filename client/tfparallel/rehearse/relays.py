"""Relays that stand before replicas on loopback, so that the network between two can be cut.

A relay listens at the address by which the others know a replica, and forwards their connections to
the replica's own address. A cut cable closes nothing and answers nothing: between the two replicas,
the relays forward nothing, and keep the connections open. With parameter servers, TensorFlow gives
all processes the addresses that the chief knows, so only the kernel says who connects.
"""

import asyncio
import dataclasses
import socket
import struct
from collections.abc import Callable, Collection, Mapping, Sequence

from tfparallel.backends.local import ports, replica_addresses
from tfparallel.rehearse import tcp_sockets

_POLL_SECONDS = 0.2
_CHUNK_BYTES = 1 << 18
_NO_LINGER = struct.pack("ii", 1, 0)
"""A socket with this option is closed by a reset."""

TrainerIds = Callable[[], Mapping[str, int]]
"""Returns the process ids of the trainers that run now, by their replicas."""


@dataclasses.dataclass(slots=True, eq=False)
class _Connection:
    """A connection of one replica to another, which passes a relay."""

    ends: frozenset[str | None]
    """None: who connects is no replica."""
    writers: list[asyncio.StreamWriter]
    copies: Sequence["asyncio.Task[None]"] = ()
    healed: asyncio.Event = dataclasses.field(default_factory=asyncio.Event)


class RelayNetwork:
    """Relays before some replicas of a job, and which pairs of these are cut."""

    def __init__(self, replicas: Collection[str]) -> None:
        drawn = iter(ports.allocate(2 * len(replicas)))
        self._ports = {replica: (next(drawn), next(drawn)) for replica in sorted(replicas)}
        """By replica: its own port, and that of its relay."""
        self._servers: dict[str, asyncio.Server] = {}
        self._connections: set[_Connection] = set()
        self._cuts: dict[frozenset[str | None], Mapping[str, int]] = {}
        """By the replicas that are cut off from each other: the job's processes at that time."""

    @property
    def addresses(self) -> Mapping[str, replica_addresses.RelayedAddress]:
        """The addresses of the replicas that have a relay."""
        return {
            replica: replica_addresses.RelayedAddress(
                address=f"{ports.HOST}:{port}", relay=f"{ports.HOST}:{relay}"
            )
            for replica, (port, relay) in self._ports.items()
        }

    def cut(self, replicas: Collection[str], process_ids: Mapping[str, int]) -> None:
        """Cut two replicas off from each other, until a replica of the job has another process."""
        ends = frozenset(replicas)
        self._cuts[ends] = process_ids
        for connection in self._connections:
            if connection.ends == ends:
                for copy in connection.copies:
                    copy.cancel()

    async def run(self, trainer_ids: TrainerIds) -> None:
        """Relay until cancelled."""
        if not self._ports:
            return
        async with asyncio.TaskGroup() as tasks:
            try:
                while True:
                    self._heal(trainer_ids())
                    await self._listen(tasks, trainer_ids)
                    await asyncio.sleep(_POLL_SECONDS)
            finally:
                for server in self._servers.values():
                    server.close()

    def _heal(self, process_ids: Mapping[str, int]) -> None:
        """End the cuts since which a replica has restarted."""
        for ends, at_cut in list(self._cuts.items()):
            if at_cut == {name: process_ids.get(name, at_cut[name]) for name in at_cut}:
                continue
            del self._cuts[ends]
            for connection in self._connections:
                if connection.ends == ends:
                    connection.healed.set()

    async def _listen(self, tasks: asyncio.TaskGroup, trainer_ids: TrainerIds) -> None:
        """Let each relay listen while its replica does, because a refusal shows that one ended."""
        listening = {entry.port for entry in tcp_sockets.list_sockets() if entry.is_listening}
        for replica, (port, _) in self._ports.items():
            server = self._servers.get(replica)
            if server is None and port in listening:
                self._servers[replica] = await self._start(replica, tasks, trainer_ids)
            elif server is not None and port not in listening:
                server.close()
                del self._servers[replica]

    async def _start(
        self, replica: str, tasks: asyncio.TaskGroup, trainer_ids: TrainerIds
    ) -> asyncio.Server:
        port, relay = self._ports[replica]

        def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            origin = _find_origin(writer, relay, trainer_ids())
            connection = _Connection(frozenset({origin, replica}), [writer])
            tasks.create_task(self._relay(connection, reader, port))

        return await asyncio.start_server(accept, ports.HOST, relay)

    async def _relay(
        self, connection: _Connection, reader: asyncio.StreamReader, port: int
    ) -> None:
        """Forward a connection until both sides have ended it, or a cut between them has ended."""
        self._connections.add(connection)
        try:
            if connection.ends not in self._cuts:
                other_reader, other_writer = await asyncio.open_connection(ports.HOST, port)
                connection.writers.append(other_writer)
            if connection.ends not in self._cuts:
                async with asyncio.TaskGroup() as copies:
                    connection.copies = [
                        copies.create_task(_copy(reader, other_writer)),
                        copies.create_task(_copy(other_reader, connection.writers[0])),
                    ]
            if connection.ends in self._cuts:
                await connection.healed.wait()
                reset(*connection.writers)
        except* OSError:  # one side has ended
            reset(*connection.writers)
        finally:
            self._connections.discard(connection)
            for writer in connection.writers:
                writer.close()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while chunk := await reader.read(_CHUNK_BYTES):
        writer.write(chunk)
        await writer.drain()
    writer.write_eof()


def reset(*writers: asyncio.StreamWriter) -> None:
    """End connections by a reset, as the answer to what is sent to a process that is gone."""
    for writer in writers:
        if not writer.is_closing():  # The other side has not reset it.
            own_socket = writer.get_extra_info("socket")
            own_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)
            writer.transport.abort()


def _find_origin(
    writer: asyncio.StreamWriter, relay: int, process_ids: Mapping[str, int]
) -> str | None:
    """Return the replica that has connected to a relay; None: no replica, or it has closed."""
    peer = writer.get_extra_info("peername")
    if peer is None:
        return None
    inodes = (
        entry.inode
        for entry in tcp_sockets.list_sockets()
        if (entry.port, entry.remote_port) == (peer[1], relay)
    )
    inode = next(inodes, None)
    if inode is None:
        return None
    owners = (name for name, number in process_ids.items() if tcp_sockets.is_held(inode, number))
    return next(owners, None)
