"""Ports of the replicas on loopback."""

import contextlib
import itertools
import random
import socket
from collections.abc import Sequence

HOST = "127.0.0.1"

_RANGE = range(15_000, 30_000)
"""Below the ports that systems hand out to outgoing connections (32768 up on Linux, 49152 up
elsewhere): a replica that is run again finds its port as it left it."""


def allocate(count: int) -> Sequence[int]:
    """Return free ports, each different; they are not held, so they are drawn at random.

    Not by the seed of the process, with which others would draw the same ones.

    Raises:
        OSError: no port of the range is free.
    """
    drawn = random.SystemRandom().sample(_RANGE, len(_RANGE))
    found = list(itertools.islice(filter(_free, drawn), count))
    if len(found) < count:
        raise OSError(f"fewer than {count} ports of {_RANGE.start} to {_RANGE.stop} are free")
    return found


def _free(port: int) -> bool:
    with contextlib.closing(socket.socket(socket.AF_INET, socket.SOCK_STREAM)) as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True
