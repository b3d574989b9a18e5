"""How two processes prove to each other that they belong to one job: by a shared key.

Each proof is made of the names of both and of a number that each has drawn for this connection
alone. So no proof can be used again, and the key never leaves a process. The sides speak in turns:

    who listens:   tfparallel NAME NUMBER
    who connects:  NAME NUMBER
    who listens:   its proof
    who connects:  its proof

The one that listens speaks first, so that nothing is ever said to a server of TensorFlow's. A relay
between two processes of the job stays unnoticed.
"""

import hashlib
import hmac
import secrets
import socket
import time
from collections.abc import Collection, Mapping

from tfparallel_trainer.contract import environment

_WORD = "tfparallel"
_LONGEST = 256
"""Maximum bytes of a line."""


class GreetingError(Exception):
    """The other side is not a process of this job."""


def derive_key(env: Mapping[str, str]) -> bytes:
    """Return the key of an attempt at a job; earlier attempts have other keys.

    A job's uid is random, and only those who may read the job know it.
    """
    secret = env.get(environment.JOB_KEY) or env.get(environment.JOB_UID, "")
    attempt = env.get(environment.ATTEMPT, "")
    return hmac.digest(secret.encode(), f"{_WORD} {attempt}".encode(), hashlib.sha256)


def receive(
    connection: socket.socket, own_name: str, peers: Collection[str], key: bytes, seconds: float
) -> str:
    """Greet whoever has connected, and return the name of the peer that it proves to be in time.

    Raises:
        GreetingError: it is none of the peers, or has another key.
        OSError: it has ended, or takes too long.
    """
    deadline = time.monotonic() + seconds
    number = secrets.token_hex(16)
    connection.sendall(f"{_WORD} {own_name} {number}\n".encode())
    name, _, peer_number = _receive_line(connection, deadline).partition(" ")
    if name not in peers:
        raise GreetingError
    transcript = own_name, number, name, peer_number
    connection.sendall(f"{_prove(key, 'listens', *transcript)}\n".encode())
    _check(_receive_line(connection, deadline), _prove(key, "connects", *transcript))
    return name


def introduce(
    connection: socket.socket, own_name: str, peer: str, key: bytes, seconds: float
) -> None:
    """Prove to a peer, to which this process has connected, who this is, after it has done so.

    Raises:
        GreetingError: who listens there is not this peer, or has another key.
        OSError: it has ended, or takes too long.
    """
    deadline = time.monotonic() + seconds
    prefix, _, peer_number = _receive_line(connection, deadline).rpartition(" ")
    if prefix != f"{_WORD} {peer}":
        raise GreetingError
    number = secrets.token_hex(16)
    connection.sendall(f"{own_name} {number}\n".encode())
    transcript = peer, peer_number, own_name, number
    _check(_receive_line(connection, deadline), _prove(key, "listens", *transcript))
    connection.sendall(f"{_prove(key, 'connects', *transcript)}\n".encode())


def _prove(key: bytes, side: str, *transcript: str) -> str:
    return hmac.new(key, " ".join((side, *transcript)).encode(), hashlib.sha256).hexdigest()


def _check(proof: str, expected: str) -> None:
    if not hmac.compare_digest(proof.encode(), expected.encode()):
        raise GreetingError


def _receive_line(connection: socket.socket, deadline: float) -> str:
    """Return what the other side says next, without the end of the line.

    It says no more before it has an answer, so no line follows in the same breath.
    """
    line = b""
    while b"\n" not in line:
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        received = connection.recv(_LONGEST - len(line))
        line += received
        if not received or len(line) >= _LONGEST:
            raise GreetingError
    if not line.endswith(b"\n") or line.count(b"\n") > 1:
        raise GreetingError
    return line[:-1].decode("ascii", errors="replace")
