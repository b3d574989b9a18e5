"""How the processes of a job meet before TensorFlow starts, and learn who ends before it has.

TensorFlow waits for a missing peer forever, silently, and holds Python's lock: no thread and no
signal handler runs. So the processes meet first: each listens at its address, and every two get
connected. A connection lasts as long as its processes, so its end shows that a peer has ended: to
this process while it waits, to a small second program (`sentinel`) while TensorFlow starts.
"""

import contextlib
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import cluster, sentinel, tasks
from tfparallel_trainer.contract import environment

_PROBE_SECONDS = 2.0
_ANSWER_SECONDS = 10.0
_LONGEST = 256


def meet(
    processes: tasks.Cluster, timeout_seconds: float, say: Callable[[str], None]
) -> "Rendezvous":
    """Return when this process is connected with every peer.

    Raises:
        StartTimeoutError: peers are missing at the limit; names them.
        PeerLostError: a peer was there and has ended.
        BadConfigurationError: this process's own port is taken.
    """
    connections = Rendezvous(processes)
    if not processes.alone:
        try:
            with connections:
                cluster.reach(processes, processes.peers, timeout_seconds, say, connections.absent)
        except BaseException:
            connections.close()
            raise
    return connections


def join(processes: tasks.Cluster, connections: "Rendezvous") -> object:
    """Start TensorFlow's cluster, before anything else of it; what this gives holds the cluster."""
    with cluster.limited(), connections.guarded():
        strategy = tf.distribute.MultiWorkerMirroredStrategy(
            cluster_resolver=resolver(processes, processes.addresses())
        )
    _keep_server(strategy.extended)
    return strategy, connections


def resolver(processes: tasks.Cluster, addresses: Mapping[str, Sequence[str]]) -> Any:
    """What tells TensorFlow the addresses by role, and which task this process is."""
    return tf.distribute.cluster_resolver.SimpleClusterResolver(
        tf.train.ClusterSpec(addresses),
        task_type=processes.task.role,
        task_id=processes.task.index,
        rpc_layer="grpc",
    )


class Rendezvous(cluster.Listener):
    """Connections with peers; keep it until TensorFlow has started in all of them."""

    def __init__(self, processes: tasks.Cluster) -> None:
        super().__init__(processes.task, "rendezvous", self._meet)
        self._processes = processes
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
        """Why a peer is not connected; empty when it is. One that has ended is a PeerLostError."""
        with self._changing:
            for name, connections in self._sockets.items():
                if all(map(_ended, connections)):
                    raise errors.PeerLostError(
                        f"A peer was lost: {name} ended while the processes met."
                    )
            connected = peer.name in self._sockets
        try:
            if connected:
                # TensorFlow looks its address up, too, and only once. A new pod may connect before
                # the name server knows it, or while an earlier denial is cached.
                socket.getaddrinfo(*cluster.endpoint(peer), type=socket.SOCK_STREAM)
                return ""
            connection = socket.create_connection(cluster.endpoint(peer), _PROBE_SECONDS)
        except (OSError, ValueError) as error:
            return cluster.reason(error)
        try:
            if connection.recv(_LONGEST) == _greeting(peer.name):
                connection.sendall(self._processes.task.name.encode())
                self._hold(peer.name, connection)
                return ""
            reason = "what answers there is no process that waits for this one"
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
            f"{name}={','.join(str(one.fileno()) for one in connections)}"
            for name, connections in self._sockets.items()
        ]
        # A cluster of thousands is longer than what a new process can be given.
        env = {name: text for name, text in os.environ.items() if name != environment.TF_CONFIG}
        words = (self._processes.task.name, os.environ.get(environment.FAILURE_FILE, ""))
        with subprocess.Popen(
            (sys.executable, "-I", "-S", sentinel.__file__, str(os.getpid()), *words, *groups),
            env=env,
            stdin=subprocess.PIPE,
            pass_fds=[connection.fileno() for connection in self._connections()],
        ) as guard:
            try:
                yield
            finally:
                guard.kill()

    def _connections(self) -> list[socket.socket]:
        return [one for connections in self._sockets.values() for one in connections]

    def _hold(self, name: str, connection: socket.socket) -> None:
        with self._changing:
            if self._closed:
                connection.close()
            else:
                self._sockets.setdefault(name, []).append(connection)

    def _meet(self, connection: socket.socket) -> None:
        threading.Thread(target=self._greet, args=(connection,), daemon=True).start()

    def _greet(self, connection: socket.socket) -> None:
        """This side speaks first, so that nothing is ever said to a server of TensorFlow's."""
        name = ""
        with contextlib.suppress(OSError):
            connection.settimeout(_ANSWER_SECONDS)
            connection.sendall(_greeting(self._processes.task.name))
            name = connection.recv(_LONGEST).decode(errors="replace")
        if name in {peer.name for peer in self._processes.peers}:
            self._hold(name, connection)
        else:  # somebody looked whether the port is open
            connection.close()


def _keep_server(extended: Any) -> None:
    """Let later strategies of a script use the server of this one.

    Each would reset the collectives of the server. A group that a faster peer has asked for by
    then would be lost, and all processes would wait for it.
    """
    type(extended)._std_server_started = True
    type(extended)._enable_check_health = False  # the coordination service notices lost peers


def _greeting(name: str) -> bytes:
    return f"tfparallel {name}".encode()


def _ended(connection: socket.socket) -> bool:
    """Whether the other side is gone; it never says more than its name."""
    connection.setblocking(False)
    try:
        return connection.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True
