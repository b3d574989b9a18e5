"""What processes have sent over TCP so far, as Linux counts it for each connection.

The counters are asked for over netlink (sock_diag(7)), which needs no rights. A connection belongs
to the processes that hold it open; each byte is counted once, where it is sent.
"""

import dataclasses
import os
import pathlib
import re
import socket
import struct
from collections.abc import Iterator

_SOCK_DIAG_BY_FAMILY = 20
_NLM_F_REQUEST_DUMP = 0x301
_NETLINK_SOCK_DIAG = 4
_DONE, _ERROR = 3, 2
_TCP_INFO = 2
_ESTABLISHED = 1 << 1

_HEADER = struct.Struct("=IHHII")
_REQUEST = struct.Struct("=BBBBI48s")
_ANSWER_BYTES = 72
_INODE = struct.Struct("=I")
_INODE_AT = 68
_ATTRIBUTE = struct.Struct("=HH")
_BYTES_ACKED = struct.Struct("=Q")
_BYTES_ACKED_AT = 120
_DATA_SEGMENTS = struct.Struct("=I")
_DATA_SEGMENTS_AT = 156

_SOCKET = re.compile(r"socket:\[(\d+)\]")


@dataclasses.dataclass(frozen=True, slots=True)
class Sent:
    """What one connection has sent and its peer has received."""

    bytes: int
    segments: int
    """TCP segments that carried data."""


class NetworkMeter:
    """Adds up what the descendants of a process send, also over connections that have ended."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._seen: dict[int, Sent] = {}

    def read(self) -> Sent | None:
        """What they have sent so far; None where the system does not tell it."""
        try:
            inodes = {inode for pid in descendants(self._pid) for inode in _sockets(pid)}
            self._seen |= {inode: sent for inode, sent in _connections() if inode in inodes}
        except (OSError, AttributeError):  # not Linux
            return None
        return Sent(
            sum(sent.bytes for sent in self._seen.values()),
            sum(sent.segments for sent in self._seen.values()),
        )


def descendants(pid: int) -> Iterator[int]:
    """The processes that a process has started, and those that these have started."""
    try:
        for task in pathlib.Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (task / "children").read_text().split()):
                yield child
                yield from descendants(child)
    except (FileNotFoundError, ProcessLookupError):  # the process or its thread has ended
        return


def _sockets(pid: int) -> Iterator[int]:
    try:
        for file in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            link = _SOCKET.fullmatch(os.readlink(file))
            if link is not None:
                yield int(link[1])
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or closed the file
        return


def _connections() -> Iterator[tuple[int, Sent]]:
    """Ask for all connections of the machine: the inode of each, and what it has sent."""
    for family in (socket.AF_INET, socket.AF_INET6):
        with socket.socket(socket.AF_NETLINK, socket.SOCK_DGRAM, _NETLINK_SOCK_DIAG) as asked:
            body = _REQUEST.pack(
                family, socket.IPPROTO_TCP, 1 << (_TCP_INFO - 1), 0, _ESTABLISHED, bytes(48)
            )
            length = _HEADER.size + len(body)
            asked.send(_HEADER.pack(length, _SOCK_DIAG_BY_FAMILY, _NLM_F_REQUEST_DUMP, 0, 0) + body)
            yield from _answers(asked)


def _answers(asked: socket.socket) -> Iterator[tuple[int, Sent]]:
    while True:
        data = asked.recv(1 << 18)
        while data:
            length, kind, *_ = _HEADER.unpack_from(data)
            if kind == _DONE:
                return
            if kind == _ERROR:
                raise OSError("netlink refuses the request")
            message = data[_HEADER.size : length]
            sent = _sent(message)
            if sent is not None:
                yield _INODE.unpack_from(message, _INODE_AT)[0], sent
            data = data[_aligned(length) :]


def _sent(message: bytes) -> Sent | None:
    attributes = message[_ANSWER_BYTES:]
    while len(attributes) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(attributes)
        info = attributes[_ATTRIBUTE.size : length]
        if kind == _TCP_INFO and len(info) >= _DATA_SEGMENTS_AT + _DATA_SEGMENTS.size:
            return Sent(
                _BYTES_ACKED.unpack_from(info, _BYTES_ACKED_AT)[0],
                _DATA_SEGMENTS.unpack_from(info, _DATA_SEGMENTS_AT)[0],
            )
        attributes = attributes[_aligned(length) :]
    return None


def _aligned(length: int) -> int:
    return (length + 3) & ~3
