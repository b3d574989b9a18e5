"""TCP sockets of this machine and the processes that hold them, as Linux lists them in /proc."""

import contextlib
import dataclasses
import os
import pathlib
from collections.abc import Iterator, Sequence

_TABLES = (pathlib.Path("/proc/net/tcp"), pathlib.Path("/proc/net/tcp6"))
"""gRPC connects to IPv4 addresses with sockets of IPv6."""

_LISTEN = "0A"
"""The state in which a socket accepts connections."""

CAN_LIST = _TABLES[0].exists()
"""Whether this system lists its sockets: Linux does."""


@dataclasses.dataclass(frozen=True, slots=True)
class TcpSocket:
    """One end of a connection, or a socket that listens."""

    port: int
    remote_port: int
    is_listening: bool
    inode: str
    """The number by which processes hold it."""


def list_sockets() -> Sequence[TcpSocket]:
    """Return the sockets of this machine's network namespace."""
    return [socket for table in _TABLES if table.exists() for socket in _read(table)]


def _read(table: pathlib.Path) -> Iterator[TcpSocket]:
    for line in table.read_text(encoding="ascii").splitlines()[1:]:
        _, local, remote, state, _, _, _, _, _, inode, *_ = line.split()
        yield TcpSocket(_read_port(local), _read_port(remote), state == _LISTEN, inode)


def _read_port(endpoint: str) -> int:
    return int(endpoint.rpartition(":")[2], 16)


def is_held(inode: str, process_id: int) -> bool:
    """Whether a process, or one that it has started, holds a socket."""
    name = f"socket:[{inode}]"
    return any(name in _list_open_files(number) for number in _list_family(process_id))


def _list_open_files(process_id: int) -> Iterator[str]:
    """Yield the names of what a process has open; nothing if it has ended."""
    with contextlib.suppress(OSError):
        for descriptor in pathlib.Path(f"/proc/{process_id}/fd").iterdir():
            with contextlib.suppress(OSError):  # It has just been closed.
                yield os.readlink(descriptor)


def _list_family(process_id: int) -> Iterator[int]:
    """Yield a process and its descendants."""
    yield process_id
    with contextlib.suppress(OSError):
        for task in pathlib.Path(f"/proc/{process_id}/task").iterdir():
            with contextlib.suppress(OSError):
                for child in (task / "children").read_text(encoding="ascii").split():
                    yield from _list_family(int(child))
