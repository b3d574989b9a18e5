"""Connects the processes of a job before TensorFlow starts, and notices who exits before it has.

TensorFlow waits for a missing peer forever, silently, and holds Python's lock: no thread and no
signal handler runs. So the processes meet first: each listens at its address, and every two get
connected, by a greeting that no stranger can give. A connection lasts as long as its processes, so
its end shows that a peer has ended: to this process while it waits, to a small second program
(`heartbeat`) while TensorFlow starts.
"""

import collections
import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors, tasks
from tfparallel_trainer.comms import cluster, greeting, heartbeat
from tfparallel_trainer.contract import environment

_PROBE_SECONDS = 2.0
_ANSWER_SECONDS = 10.0

_MOST_GREETED = 256
"""Connections that may be in their greeting at the same time. Beyond that, the slowest one is
closed. A peer answers at once, and tries again if its connection was closed."""


def meet(
    processes: tasks.Cluster,
    timeout_seconds: float,
    say: Callable[[str], None],
    env: Mapping[str, str] = os.environ,
) -> "Rendezvous":
    """Return when this process is connected with every peer, by the key in its environment.

    Raises:
        StartTimeoutError: peers are missing at the limit; names them.
        PeerLostError: a peer was there and has ended.
        BadConfigurationError: this process's own port is taken.
    """
    connections = Rendezvous(processes, env)
    if not processes.alone:
        try:
            with connections:
                cluster.reach(processes, processes.peers, timeout_seconds, say, connections.absent)
        except BaseException:
            connections.close()
            raise
    return connections


def join(processes: tasks.Cluster, connections: "Rendezvous") -> object:
    """Start TensorFlow's cluster, before any operation; the result keeps it alive."""
    with cluster.limited(), connections.guarded():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver(processes, processes.addresses())
        )
    _keep_server(strategy.extended)
    return strategy, connections


def resolver(processes: tasks.Cluster, addresses: Mapping[str, Sequence[str]]) -> Any:
    """Return a resolver with the addresses by role and this process's task, for TensorFlow."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses),
        task_type=processes.task.role,
        task_id=processes.task.index,
        rpc_layer="grpc",
    )


class Rendezvous(cluster.Listener):
    """Connections with peers; keep it until TensorFlow has started in all of them."""

    def __init__(self, processes: tasks.Cluster, env: Mapping[str, str] = os.environ) -> None:
        super().__init__(processes.task, "rendezvous", self._meet)
        self._processes = processes
        self._names = frozenset(peer.name for peer in processes.peers)
        self._key = greeting.derive_key(env)
        self._greeted: collections.deque[socket.socket] = collections.deque()
        self._sockets: dict[str, list[socket.socket]] = {}
        self._closed = False
        self._changing = threading.Lock()

    def close(self) -> None:
        """End all connections."""
        with self._changing:
            self._closed = True
            for connection in self._connections():
                connection.close()

    def absent(self, peer: tasks.Task) -> str:
        """Return why a peer is not connected; empty if it is.

        A peer that has exited is a PeerLostError.
        """
        with self._changing:
            for name, connections in self._sockets.items():
                if all(map(_ended, connections)):
                    raise errors.PeerLostError(
                        f"A peer was lost: {name} ended while the processes met."
                    )
            connected = peer.name in self._sockets
        try:
            if connected:
                # TensorFlow resolves the peer's name too, and only once. A new pod may connect
                # before the name server knows it, or while a negative answer is cached.
                socket.getaddrinfo(*cluster.endpoint(peer), type=socket.SOCK_STREAM)
                return ""
            connection = socket.create_connection(cluster.endpoint(peer), _PROBE_SECONDS)
        except (OSError, ValueError) as error:
            return cluster.reason(error)
        try:
            own_name = self._processes.task.name
            greeting.introduce(connection, own_name, peer.name, self._key, _PROBE_SECONDS)
            self._hold(peer.name, connection)
            return ""
        except greeting.GreetingError:
            reason = "what answers there is no process of this attempt of the job"
        except OSError as error:
            reason = cluster.reason(error)
        connection.close()
        return reason

    @contextlib.contextmanager
    def guarded(self) -> Iterator[None]:
        """End this process, by SIGALRM and with a sentence, when a peer ends before the body.

        Within `cluster.limited`, which lets that signal end it.
        """
        if not self._sockets:
            yield
            return
        groups = [
            f"{name}={','.join(str(connection.fileno()) for connection in connections)}"
            for name, connections in self._sockets.items()
        ]
        # A cluster of thousands is longer than what a new process can be given.
        env = {name: text for name, text in os.environ.items() if name != environment.TF_CONFIG}
        arguments = (self._processes.task.name, os.environ.get(environment.FAILURE_FILE, ""))
        with subprocess.Popen(
            (sys.executable, "-I", "-S", heartbeat.__file__, str(os.getpid()), *arguments, *groups),
            env=env,
            stdin=subprocess.PIPE,
            pass_fds=[connection.fileno() for connection in self._connections()],
        ) as guard:
            try:
                yield
            finally:
                guard.kill()

    def _connections(self) -> list[socket.socket]:
        return [connection for connections in self._sockets.values() for connection in connections]

    def _hold(self, name: str, connection: socket.socket) -> None:
        with self._changing:
            if self._closed:
                connection.close()
            else:
                self._sockets.setdefault(name, []).append(connection)

    def _meet(self, connection: socket.socket) -> None:
        with self._changing:
            self._greeted.append(connection)
            if len(self._greeted) > _MOST_GREETED:
                with contextlib.suppress(OSError):  # it has ended
                    self._greeted[0].shutdown(socket.SHUT_RDWR)
                self._greeted.rotate(-1)
        threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        own_name = self._processes.task.name
        try:
            name = greeting.receive(connection, own_name, self._names, self._key, _ANSWER_SECONDS)
        except (greeting.GreetingError, OSError):  # a stranger, or a look whether the port is open
            connection.close()
        else:
            self._hold(name, connection)
        finally:
            with self._changing:
                self._greeted.remove(connection)


def _keep_server(extended: Any) -> None:
    """Let later strategies of a script use the server of this one.

    Otherwise, each would reset the server's collectives. A group that a faster peer has already
    requested would be lost, and all processes would wait for it.
    """
    type(extended)._std_server_started = True
    type(extended)._enable_check_health = False  # the coordination service notices lost peers


def _ended(connection: socket.socket) -> bool:
    """Whether the peer has closed the connection; it sends nothing after its greeting."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
