"""Ports of the replicas on loopback."""

import contextlib
import fcntl
import functools
import itertools
import os
import pathlib
import random
import socket
import tempfile
from collections.abc import Sequence

HOST = "127.0.0.1"

_ELSEWHERE = ("192.0.2.1", 9)
"""An address that no machine has (RFC 5737)."""

_RANGE = range(15_000, 30_000)
"""A range below the ports of outgoing connections, which begin at 32768 on Linux and 49152
elsewhere. A replica that restarts finds its port free."""

_allocated: set[int] = set()
"""Ports that this process has taken, because a lock does not exclude the process that holds it."""


def allocate(count: int) -> Sequence[int]:
    """Return free ports, which no other process of this user gets while this one lives.

    The ports are random, but do not depend on the seed of the process.

    Raises:
        OSError: too few ports of the range are free.
    """
    drawn = random.SystemRandom().sample(_RANGE, len(_RANGE))
    chosen = list(itertools.islice((port for port in drawn if _claim(port) and _free(port)), count))
    if len(chosen) < count:
        raise OSError(f"fewer than {count} ports of {_RANGE.start} to {_RANGE.stop} are free")
    return chosen


def has_route() -> bool:
    """Whether this machine is on a network, so that others may reach it."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_ELSEWHERE)  # sends nothing
        except OSError:
            return False
        return True


def _claim(port: int) -> bool:
    """Take a port that no other process has taken, even if nothing listens on it yet."""
    if port in _allocated:
        return False
    try:
        fcntl.lockf(_book(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except (BlockingIOError, PermissionError):
        return False
    _allocated.add(port)
    return True


@functools.cache
def _book() -> int:
    """The file in which processes lock a byte for each port. The lock ends with the process."""
    path = pathlib.Path(tempfile.gettempdir()) / f"tfparallel-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)


def _free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
