"""How workers and servers learn that training has ended: they ask the chief at its address.

TensorFlow's servers never end by themselves. So the chief answers at the address that TF_CONFIG
gives it whether training goes on; its own TensorFlow server takes another port, which TensorFlow
tells the others.
"""

import contextlib
import enum
import socket
import threading
import time
from collections.abc import Iterable

from tfparallel_trainer.comms import cluster, tasks

_ASK_SECONDS = 3.0
_LISTEN_SECONDS = 1.0
_LONGEST_NAME = 64


class Answer(enum.StrEnum):
    """What the chief says."""

    RUN = "run"
    DONE = "done"


class Control(cluster.Listener):
    """The chief's end; answers from a thread as long as the body of `with` runs."""

    def __init__(self, chief: tasks.Task) -> None:
        super().__init__(chief, "control", self._reply)
        self._answer = Answer.RUN
        self._opened_at = time.monotonic()
        self._asked_at: dict[str, float] = {}
        self._lives: dict[str, str] = {}
        self._dismissed: set[str] = set()
        self._changed = threading.Condition()

    def dismiss(self, names: Iterable[str], seconds: float) -> None:
        """Answer that training is done, and wait until all of these have heard it."""
        tasks = set(names)
        with self._changed:
            self._answer = Answer.DONE
            self._changed.wait_for(lambda: tasks <= self._dismissed, seconds)

    def silence(self, name: str) -> float:
        """For how many seconds a process has not asked."""
        with self._changed:
            return time.monotonic() - self._asked_at.get(name, self._opened_at)

    def life(self, name: str) -> str:
        """What tells the process that asked last by this name from those before; or empty."""
        with self._changed:
            return self._lives.get(name, "")

    def forget(self, name: str) -> None:
        """Forget the life of a process that has ended."""
        with self._changed:
            self._lives.pop(name, None)

    def absent(self, peer: tasks.Task) -> str:
        """Why a process cannot be worked with; empty when it listens and has asked."""
        with self._changed:
            has_asked = peer.name in self._asked_at
        return cluster.unreachable(peer) or ("" if has_asked else "it has not asked the chief")

    def _reply(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            connection.settimeout(_LISTEN_SECONDS)
            name, _, life = connection.recv(_LONGEST_NAME).decode(errors="replace").partition(" ")
            if not name:  # somebody looked whether the port is open
                return
            with self._changed:
                answer = self._answer
                self._asked_at[name] = time.monotonic()
                self._lives[name] = life
            connection.sendall(answer.encode())
            if answer is Answer.DONE:
                with self._changed:
                    self._dismissed.add(name)
                    self._changed.notify()


def ask(chief: tasks.Task, name: str, life: str) -> Answer | None:
    """Ask the chief whether training goes on; None when it does not answer.

    `life` is another one for each process that has had this name.
    """
    try:
        with socket.create_connection(cluster.endpoint(chief), _ASK_SECONDS) as connection:
            connection.sendall(f"{name} {life}".encode())
            return Answer(connection.recv(_LONGEST_NAME).decode())
    except (OSError, ValueError):
        return None
