"""How workers and servers learn from the chief that training has ended.

They do not load the user's module: the chief traces its functions, and TensorFlow sends the graphs.
TensorFlow's servers never end by themselves. So the chief answers at its address whether training
continues; its own TensorFlow server takes another port, which TensorFlow tells the others.
"""

import contextlib
import enum
import secrets
import socket
import threading
import time
from collections.abc import Iterable

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import cluster, devices
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console
from tfparallel_trainer.tasks import Task

_ASK_EVERY_SECONDS = 1.0
_LINGER_SECONDS = 2.0
"""The chief exits first: its TensorFlow logs errors about peers that have already exited."""

_ASK_SECONDS = 3.0
_LISTEN_SECONDS = 1.0
_LONGEST_NAME = 64


class Answer(enum.StrEnum):
    """An answer of the chief."""

    RUN = "run"
    DONE = "done"


class Control(cluster.Listener):
    """The chief's side: answers from a thread while the body of `with` runs."""

    def __init__(self, chief: Task) -> None:
        super().__init__(chief, "control", self._reply)
        self._answer = Answer.RUN
        self._opened_at = time.monotonic()
        self._asked_at: dict[str, float] = {}
        self._lives: dict[str, str] = {}
        self._dismissed: set[str] = set()
        self._changed = threading.Condition()

    def dismiss(self, names: Iterable[str], seconds: float) -> None:
        """Answer that training is done, and wait until all named processes have received it."""
        tasks = set(names)
        with self._changed:
            self._answer = Answer.DONE
            self._changed.wait_for(lambda: tasks <= self._dismissed, seconds)

    def silence(self, name: str) -> float:
        """Seconds since a process last asked."""
        with self._changed:
            return time.monotonic() - self._asked_at.get(name, self._opened_at)

    def life(self, name: str) -> str:
        """Identifier of the process that last asked under a name; empty if none has asked.

        A restart changes it.
        """
        with self._changed:
            return self._lives.get(name, "")

    def forget(self, name: str) -> None:
        """Forget the life of a process that has ended."""
        with self._changed:
            self._lives.pop(name, None)

    def absent(self, peer: Task) -> str:
        """Why a process is unavailable; empty if it listens and has asked."""
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


def ask(chief: Task, name: str, life: str) -> Answer | None:
    """Ask the chief whether training continues.

    `life` identifies this process; a restart changes it.
    """
    try:
        with socket.create_connection(cluster.endpoint(chief), _ASK_SECONDS) as connection:
            connection.sendall(f"{name} {life}".encode())
            return Answer(connection.recv(_LONGEST_NAME).decode())
    except (OSError, ValueError):
        return None


def serve(settings: Settings, out: console.Console, stop: termination.Termination) -> None:
    """Serve until the chief says that training is done.

    Raises:
        StartTimeoutError: the chief has never answered.
        PreemptedError: asked to end, and the chief has ended as well.
        PeerLostError: the chief has been gone for longer than the start timeout.
        BadConfigurationError: this process's own port is taken.
    """
    devices.prepare(settings.cpu_devices, settings.cluster.alone)
    server = _start(settings)
    stop.install()  # TensorFlow replaces the handler of SIGTERM when it starts a server
    task, chief = settings.cluster.task, settings.cluster.tasks[0]
    limit = settings.job.trainer.start_timeout_seconds
    out.say(f"{task.name} serves at {task.address} for {chief.name} at {chief.address}")
    stop.allow(
        termination.STEP_SECONDS
    )  # if all processes get SIGTERM together, the chief saves first
    answered_at, has_answered, life = time.monotonic(), False, secrets.token_hex(4)
    while (answer := ask(chief, task.name, life)) is not Answer.DONE:
        if answer is Answer.RUN:
            answered_at, has_answered = time.monotonic(), True
        elif stop.asked:
            raise errors.PreemptedError(
                f"{task.name} received SIGTERM after the chief {chief.name} had exited."
            )
        elif time.monotonic() - answered_at > limit:
            raise _gone(task.name, f"{chief.name} ({chief.address})", limit, has_answered)
        time.sleep(_ASK_EVERY_SECONDS)
    stop.end()
    out.say("training is done")
    time.sleep(_LINGER_SECONDS)
    del server  # TensorFlow's server lives as long as it


def _start(settings: Settings) -> object:
    task = settings.cluster.task
    peers = {
        role: {task.index: task.address for task in settings.cluster.with_role(role)}
        for role in {task.role for task in settings.cluster.tasks[1:]}
    }
    try:
        return tf.distribute.Server(
            tf.train.ClusterSpec(peers), job_name=task.role, task_index=task.index, protocol="grpc"
        )
    except (tf.errors.UnknownError, tf.errors.InvalidArgumentError) as error:
        raise errors.BadConfigurationError(
            f"TF_CONFIG gives {task.name} the address {task.address}, where it cannot listen "
            f"({error.message}): give it a free port."
        ) from error


def _gone(name: str, chief: str, limit: float, has_answered: bool) -> errors.TrainerError:
    if has_answered:
        return errors.PeerLostError(
            f"A peer was lost: {chief} has been gone for {limit:g} s (startTimeoutSeconds)."
        )
    return errors.StartTimeoutError(
        f"{name} waited {limit:g} s (startTimeoutSeconds) for {chief}: see whether that replica "
        "runs, and what its log says."
    )
