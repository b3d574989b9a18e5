"""Listens at addresses, connects to other processes, and notices that they have ended.

TensorFlow notices a lost peer at once only during a message, and otherwise by missed heartbeats
after about ten seconds. A process that has ended does not listen, so each process checks whether
the next one and the chief still do. Heartbeats show a hung peer or a lost node.
"""

import contextlib
import ipaddress
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Self

from tfparallel_trainer import errors, tasks

_SAY_EVERY_SECONDS = 10.0
_FIRST_SAY_SECONDS = 3.0
_PROBE_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_INTERVAL_SECONDS = 1.0
_JOIN_SECONDS = 120
"""Seconds that TensorFlow may take to start after all processes are connected."""


def reach(
    cluster: tasks.Cluster,
    peers: Sequence[tasks.Task],
    timeout_seconds: float,
    say: Callable[[str], None],
    why: Callable[[tasks.Task], str] | None = None,
) -> None:
    """Return once these peers are reachable; a StartTimeoutError names those that are missing.

    `why` returns why a peer is missing, empty if it is not; by default it is `unreachable`.
    """
    began = time.monotonic()
    next_say = began + _FIRST_SAY_SECONDS
    missing = peers
    while True:
        reasons = {peer: (why or unreachable)(peer) for peer in missing}
        missing = [peer for peer, reason in reasons.items() if reason]
        if not missing:
            return
        absent = ", ".join(f"{peer.name} ({peer.address}: {reasons[peer]})" for peer in missing)
        now = time.monotonic()
        if now - began >= timeout_seconds:
            raise errors.StartTimeoutError(
                f"{cluster.task.name} waited {timeout_seconds:g} s (startTimeoutSeconds) for "
                f"{absent}: see whether those replicas run, and what their logs say."
            )
        if now >= next_say:
            say(f"waiting for {absent}")
            next_say = now + _SAY_EVERY_SECONDS
        time.sleep(_PAUSE_SECONDS)


@contextlib.contextmanager
def limited(seconds: int = _JOIN_SECONDS) -> Iterator[None]:
    """Let TensorFlow start a cluster in the body, and exit if that takes too long.

    A peer on a lost node would block it forever, so the kernel's alarm or SIGTERM ends the process.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)


def listen(task: tasks.Task) -> socket.socket:
    """Listen at this process's port; the kernel accepts connections by itself.

    A process with a loopback address listens there only. Any other listens on all interfaces,
    because it may not know the address by which its peers reach it.
    """
    try:
        host, port = endpoint(task)
        if (loopback := _loopback(host)) is not None:
            family = socket.AF_INET6 if loopback.version == 6 else socket.AF_INET
            return socket.create_server((str(loopback), port), family=family, backlog=4096)
        both = socket.has_dualstack_ipv6()
        return socket.create_server(
            ("", port),
            family=socket.AF_INET6 if both else socket.AF_INET,
            backlog=4096,
            dualstack_ipv6=both,
        )
    except (OSError, ValueError) as error:
        raise errors.BadConfigurationError(
            f"TF_CONFIG gives {task.name} the address {task.address}, where it cannot listen "
            f"({error}): give it a free port."
        ) from error


class Listener:
    """Listens at a process's port while the body of `with` runs; a thread accepts connections."""

    def __init__(self, task: tasks.Task, name: str, take: Callable[[socket.socket], None]) -> None:
        self._task = task
        self._take = take
        self._has_left = False
        self._listening = threading.Thread(target=self._accept, name=name, daemon=True)

    def __enter__(self) -> Self:
        self._socket = listen(self._task)
        self._listening.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._has_left = True
        with contextlib.suppress(OSError):  # wakes the thread; the port is free when it has ended
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()
        self._listening.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                if self._has_left:
                    return
                time.sleep(_PAUSE_SECONDS)  # too many open files, until some are closed
                continue
            self._take(connection)


@contextlib.contextmanager
def reserved_port(host: str) -> Iterator[int]:
    """Reserve a free port for a server that starts in the body.

    The kernel does not assign a port to which a socket is bound. If the socket does not listen,
    servers with SO_REUSEADDR can still use the port, as those of TensorFlow and `listen`.
    """
    with socket.socket() as reservation:
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind((host, 0))
        port: int = reservation.getsockname()[1]
        yield port


def endpoint(peer: tasks.Task) -> tuple[str, int]:
    """Host and port of a process; a ValueError if its address has no port."""
    host, _, port = peer.address.rpartition(":")
    return host.strip("[]"), int(port)


def _loopback(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the loopback address of a host; None: it is not on loopback."""
    if host == "localhost":
        return ipaddress.IPv4Address("127.0.0.1")
    try:
        address = ipaddress.ip_address(host)
    except ValueError:  # a host name
        return None
    return address if address.is_loopback else None


def unreachable(peer: tasks.Task) -> str:
    """Why a peer does not answer now; empty when it does."""
    error = _probe(peer)
    return "" if error is None else reason(error)


def reason(error: Exception) -> str:
    """The reason of a connection error, without an address or a number."""
    return str(getattr(error, "strerror", None) or error)


def refuses(peer: tasks.Task) -> bool:
    """Whether a peer's port refuses connections; a node that does not answer does not count."""
    return isinstance(_probe(peer), ConnectionRefusedError)


def watched(cluster: tasks.Cluster) -> list[tasks.Task]:
    """The peers that this process watches: the next one in a ring, and the chief."""
    following = cluster.tasks[(cluster.me + 1) % len(cluster.tasks)]
    return [peer for peer in dict.fromkeys((following, cluster.tasks[0])) if peer != cluster.task]


@contextlib.contextmanager
def watching(
    peers: Sequence[tasks.Task], give_up: Callable[[errors.TrainerError], None]
) -> Iterator[None]:
    """Watch some peers while the body runs; `give_up` is called from another thread."""
    over = threading.Event()
    deciding = threading.Lock()

    def look_at(peer: tasks.Task) -> None:
        # Twice, because a server may be busy for a moment.
        if not refuses(peer) or over.wait(_INTERVAL_SECONDS / 2) or not refuses(peer):
            return
        what = f"A peer was lost: {peer.name} no longer listens at {peer.address}."
        with deciding:
            if not over.is_set():  # after the body, a peer may exit
                give_up(errors.PeerLostError(what))

    def look() -> None:
        while not over.wait(_INTERVAL_SECONDS):
            for peer in peers:
                look_at(peer)

    if peers:
        threading.Thread(target=look, name="peers", daemon=True).start()
    try:
        yield
    finally:
        with deciding:
            over.set()


def _probe(peer: tasks.Task) -> Exception | None:
    """Connect to a peer, and return the error, if any."""
    try:
        socket.create_connection(endpoint(peer), _PROBE_SECONDS).close()
    except (OSError, ValueError) as error:
        return error
    return None
