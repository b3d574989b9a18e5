"""Processes that prove to be of one job, and strangers that cannot."""

import concurrent.futures
import contextlib
import ipaddress
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from testing import waiting
from tfparallel.backends.local import ports
from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster, greeting, rendezvous
from tfparallel_trainer.contract import environment

JOB = {environment.JOB_UID: "a-uid", environment.ATTEMPT: "2"}
KEY = greeting.derive_key(JOB)

OTHERS = {
    "another job": {**JOB, environment.JOB_UID: "another-uid"},
    "an earlier attempt": {**JOB, environment.ATTEMPT: "1"},
    "another key": {**JOB, environment.JOB_KEY: "secret"},
    "nothing known": {},
}


def clusters(size: int) -> list[tasks.Cluster]:
    """The same processes, as each of them sees them."""
    members = tuple(
        tasks.Task("worker", index, f"127.0.0.1:{port}")
        for index, port in enumerate(ports.allocate(size))
    )
    return [tasks.Cluster(members, me) for me in range(size)]


def greet(key: bytes, peer_key: bytes, name: str = "worker-1") -> tuple[object, object]:
    """Return what both sides of a greeting end with."""
    left, right = socket.socketpair()
    with left, right, concurrent.futures.ThreadPoolExecutor(2) as threads:
        listens = threads.submit(greeting.receive, left, "worker-0", {"worker-1"}, key, 5)
        connects = threads.submit(greeting.introduce, right, name, "worker-0", peer_key, 5)
        sides: list[concurrent.futures.Future[Any]] = [listens, connects]
        concurrent.futures.wait(sides, return_when="FIRST_EXCEPTION")
        for connection in (left, right):  # ends who still waits for one that has given up
            connection.shutdown(socket.SHUT_RDWR)
        return (
            listens.exception() or listens.result(),
            connects.exception() or connects.result(),
        )


def test_two_of_one_attempt_know_each_other() -> None:
    assert greet(KEY, greeting.derive_key(dict(JOB))) == ("worker-1", None)


@pytest.mark.parametrize("env", OTHERS.values(), ids=OTHERS)
def test_who_has_another_key_is_known_to_neither_side(env: dict[str, str]) -> None:
    listens, connects = greet(KEY, greeting.derive_key(env))
    assert isinstance(listens, greeting.GreetingError)
    assert isinstance(connects, greeting.GreetingError)


def test_a_key_of_the_jobs_own_replaces_its_uid() -> None:
    secret = {environment.JOB_KEY: "secret"}
    assert greeting.derive_key({**JOB, **secret}) == greeting.derive_key(
        {**OTHERS["another job"], **secret}
    )


def test_a_name_that_is_not_expected_is_refused() -> None:
    listens, connects = greet(KEY, KEY, name="worker-7")
    assert isinstance(listens, greeting.GreetingError)
    assert isinstance(connects, greeting.GreetingError | OSError)


@contextlib.contextmanager
def waiting_process(processes: tasks.Cluster) -> Iterator[rendezvous.Rendezvous]:
    """A process that listens for its peers, and holds none when the body ends."""
    with rendezvous.Rendezvous(processes, JOB) as connections:
        yield connections
    connections.close()


def connect(processes: tasks.Cluster) -> socket.socket:
    connection = socket.create_connection(cluster.endpoint(processes.task), 10)
    connection.settimeout(10)
    return connection


def test_a_stranger_that_says_a_name_is_not_counted() -> None:
    first, second = clusters(2)
    with waiting_process(first) as connections, connect(first) as stranger:
        first_bytes = stranger.recv(256)
        assert first_bytes.startswith(b"tfparallel worker-0 ")
        stranger.sendall(b"worker-1")  # all that was asked for before there was a key
        stranger.sendall(b" 00\n")
        assert stranger.recv(256)  # the proof of the other side
        stranger.sendall(b"0" * 64 + b"\n")
        assert stranger.recv(256) == b""
        assert connections.absent(second.task) == "Connection refused"


def test_a_greeting_cannot_be_used_again() -> None:
    first, second = clusters(2)
    sent: list[bytes] = []
    with waiting_process(first) as connections:
        with _Recorded(connect(first), sent) as recorded:
            greeting.introduce(recorded, "worker-1", "worker-0", KEY, 10)
            waiting.until(lambda: not connections.absent(second.task), "the peer")
        with connect(first) as replayed:
            replayed.recv(256)
            replayed.sendall(sent[0])
            replayed.recv(256)
            replayed.sendall(sent[1])
            assert replayed.recv(256) == b""
    assert len(sent) == 2


class _Recorded(socket.socket):
    """A connection that remembers what was sent through it."""

    def __init__(self, connection: socket.socket, sent: list[bytes]) -> None:
        super().__init__(fileno=connection.detach())
        self._sent = sent

    def sendall(self, data: bytes, *flags: int) -> None:  # type: ignore[override]
        self._sent.append(data)
        super().sendall(data, *flags)


def test_connections_that_say_nothing_are_closed_beyond_a_number() -> None:
    first, second = clusters(2)
    with waiting_process(first) as connections, contextlib.ExitStack() as strangers:
        silent = [strangers.enter_context(connect(first)) for _ in range(260)]
        for connection in silent[:4]:
            assert connection.recv(256).startswith(b"tfparallel worker-0 ")
            assert connection.recv(256) == b""
        with connect(first) as peer:
            greeting.introduce(peer, "worker-1", "worker-0", KEY, 10)
            waiting.until(lambda: not connections.absent(second.task), "the peer")


def test_strangers_on_every_side_do_not_keep_the_peers_apart() -> None:
    everyone = clusters(3)
    done = threading.Event()

    def disturb(victim: tasks.Cluster) -> None:
        """Say the name of a peer again and again, and hold connections that say nothing."""
        silent: list[socket.socket] = []
        name = victim.peers[0].name.encode()
        while not done.is_set() and len(silent) < 300:
            with contextlib.suppress(OSError):
                connection = connect(victim)
                silent.append(connection)
                if len(silent) % 2:
                    connection.sendall(name)
        done.wait(60)
        for connection in silent:
            connection.close()

    def meet(processes: tasks.Cluster) -> rendezvous.Rendezvous:
        return rendezvous.meet(processes, 60, lambda _: None, JOB)

    with concurrent.futures.ThreadPoolExecutor(6) as threads:
        disturbed = [threads.submit(disturb, everyone[0])]
        first = threads.submit(meet, everyone[0])
        others = [threads.submit(meet, processes) for processes in everyone[1:]]
        try:
            rendezvouses = [first.result(), *(future.result() for future in others)]
        finally:
            done.set()
        for future in disturbed:
            future.result()
    for connections in rendezvouses:
        connections.close()


def test_who_listens_at_the_address_of_a_peer_without_the_key_is_not_taken_for_it() -> None:
    first, second = clusters(2)
    with waiting_process(second), pytest.raises(errors.StartTimeoutError) as caught:
        rendezvous.meet(first, 1, lambda _: None, OTHERS["an earlier attempt"])
    assert "what answers there is no process of this attempt of the job" in str(caught.value)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "localhost", "[::1]"])
def test_a_process_on_loopback_listens_there_alone(host: str) -> None:
    if host == "[::1]" and not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    [port] = ports.allocate(1)
    with cluster.listen(tasks.Task("worker", 0, f"{host}:{port}")) as listener:
        address = listener.getsockname()[0]
        assert address == {"localhost": "127.0.0.1"}.get(host, host.strip("[]"))
        with socket.create_connection((host.strip("[]"), port), 10):
            pass


def test_a_process_with_another_address_listens_at_all() -> None:
    [port] = ports.allocate(1)
    with cluster.listen(tasks.Task("worker", 0, f"job-worker-0.job:{port}")) as listener:
        assert ipaddress.ip_address(listener.getsockname()[0]).is_unspecified
