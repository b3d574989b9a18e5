"""What workers and servers do: they run what the chief sends, and leave when it says so.

They load no module of the user: the chief traces its functions and TensorFlow sends the graphs.
"""

import secrets
import time

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import devices
from tfparallel_trainer.engines.servers import control
from tfparallel_trainer.runtime import settings
from tfparallel_trainer.runtime.lifecycle import termination
from tfparallel_trainer.runtime.reporting import console

_ASK_EVERY_SECONDS = 1.0
_LINGER_SECONDS = 2.0
"""The chief leaves first: its TensorFlow complains of those that it cannot say goodbye to."""


def until_done(
    settings: settings.Settings, out: console.Console, stop: termination.Termination
) -> None:
    """Serve until the chief says that training is done.

    Raises:
        StartTimeoutError: the chief has never answered.
        PreemptedError: asked to end, and the chief has ended as well.
        PeerLostError: the chief has been gone for longer than the start timeout.
        BadConfigurationError: this process's own port is taken.
    """
    devices.prepare(settings.cpu_devices, settings.cluster.alone)
    server = _start(settings)
    stop.install()  # TensorFlow takes SIGTERM when it starts a server
    task, chief = settings.cluster.task, settings.cluster.tasks[0]
    limit = settings.job.trainer.start_timeout_seconds
    out.say(f"{task.name} serves at {task.address} for {chief.name} at {chief.address}")
    stop.allow(termination.STEP_SECONDS)  # when all are asked at once, the chief saves first
    answered_at, has_answered, life = time.monotonic(), False, secrets.token_hex(4)
    while (answer := control.ask(chief, task.name, life)) is not control.Answer.DONE:
        if answer is control.Answer.RUN:
            answered_at, has_answered = time.monotonic(), True
        elif stop.asked:
            raise errors.PreemptedError(f"{task.name} was asked to end, and {chief.name} has left.")
        elif time.monotonic() - answered_at > limit:
            raise _gone(task.name, f"{chief.name} ({chief.address})", limit, has_answered)
        time.sleep(_ASK_EVERY_SECONDS)
    stop.end()
    out.say("training is done")
    time.sleep(_LINGER_SECONDS)
    del server  # TensorFlow's server lives as long as it


def _start(settings: settings.Settings) -> object:
    task = settings.cluster.task
    peers = {
        role: {one.index: one.address for one in settings.cluster.of(role)}
        for role in {one.role for one in settings.cluster.tasks[1:]}
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
