"""The surroundings of a script: its processes and devices, its signals, and its exit code."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

import tensorflow as tf

from tfparallel_trainer import errors, process_settings, tasks
from tfparallel_trainer.comms import devices, rendezvous
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.reporting import console
from tfparallel_trainer.scripts import explanation

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


_joined: list[tuple[int, object]] = []
"""How many devices this process has, and what holds TensorFlow's cluster: processes are one as long
as it lives. At most one pair, because TensorFlow joins once in the life of a process."""


def in_job() -> bool:
    """Whether the program that started this process reads its exit code."""
    return environment.JOB_UID in os.environ or bool(os.environ.get(environment.TF_CONFIG))


def described() -> tasks.Cluster:
    """The cluster that TF_CONFIG describes, which must not make this process the evaluator."""
    cluster = tasks.parse(os.environ.get(environment.TF_CONFIG))
    if cluster.task.role == tasks.EVALUATOR:
        raise errors.BadConfigurationError(
            "TF_CONFIG starts this process as an evaluator, and fit trains: give fit "
            "validation_data, or let the evaluator run a script of its own."
        )
    return cluster


def join(cluster: tasks.Cluster, timeout_seconds: float, say: Callable[[str], None]) -> int:
    """Join the peers unless this process has; give the number of its devices.

    A peer that does not come is a StartTimeoutError, a TensorFlow that runs alone a UserCodeError.
    """
    if not _joined:
        devices.limit_threads()
        joined = _join(cluster, timeout_seconds, say)
        if cluster.alone:
            return joined[0]
        _joined.append(joined)
    return _joined[0][0]


def before_servers() -> None:
    """Configure the device of a process of an asynchronous job, unless TensorFlow runs already."""
    devices.limit_threads()
    try:
        devices.prepare(1, alone=False)
    except errors.UserCodeError as error:
        raise errors.UserCodeError(
            "TensorFlow was used before fit, and then it cannot connect to parameter servers. Give "
            "fit a function that builds the model, and arrays, a generator or a PyDataset."
        ) from error


def _join(
    cluster: tasks.Cluster, timeout_seconds: float, say: Callable[[str], None]
) -> tuple[int, object]:
    cpu_devices = process_settings.cpu_devices(os.environ)
    try:
        count = devices.prepare(cpu_devices, alone=False)
    except errors.UserCodeError as error:
        return _running(cluster, cpu_devices, error), None
    if cluster.alone:
        return count, None
    connections = rendezvous.meet(cluster, timeout_seconds, say)
    before = signal.getsignal(signal.SIGTERM)
    cluster_handle = rendezvous.join(cluster, connections)
    signal.signal(signal.SIGTERM, before)  # TensorFlow takes it when it starts a cluster
    return count, cluster_handle


def _running(cluster: tasks.Cluster, cpu_devices: int, error: errors.UserCodeError) -> int:
    """The number of devices of a TensorFlow that already runs, if it runs in the required way."""
    kind = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
    names = [device.name for device in tf.config.list_logical_devices(kind)]
    task = cluster.task
    if not cluster.alone and f"/job:{task.role}/replica:0/task:{task.index}/" not in names[0]:
        raise errors.UserCodeError(
            f"TF_CONFIG gives {cluster.task.name} peers, and TensorFlow was used before fit could "
            "join them. Make tfparallel_trainer.start() the first line after the imports, or give "
            "fit a function that builds the model."
        ) from error
    return len(names) if kind == "GPU" else min(cpu_devices, len(names))


class Untouched(termination.Termination):
    """Leaves signals to the script."""

    def install(self) -> None:
        """Listen to nothing."""


@contextlib.contextmanager
def listening(
    listens: bool, give_up: Callable[[], None], grace_seconds: float
) -> Iterator[termination.Termination]:
    """Listen to SIGTERM and SIGINT in the body where it is wanted; then leave all as it was."""
    if not listens:
        yield Untouched(give_up, grace_seconds)
        return
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    descriptor = signal.set_wakeup_fd(-1)
    stop = termination.Termination(give_up, grace_seconds)
    try:
        stop.install()
        yield stop
    finally:
        stop.end()
        signal.set_wakeup_fd(descriptor)
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)
        stop.close()


def exit_by_contract() -> None:
    """From now on an error that nobody catches ends the process with its exit code, at once.

    Python would end with 1, and would wait for threads of TensorFlow whose peers are gone.
    """
    sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, errors.TrainerError):
        out = console.Console(_replica(), os.environ.get(environment.FAILURE_FILE, ""))
        termination.give_up(out, error)
    traceback.print_exception(kind, error, trace)
    termination.end(exits.Exit.USER_ERROR if explanation.report(error, os.environ) else 1)


def _replica() -> str:
    """This process's name in logs; empty where it has no peers or TF_CONFIG is not right."""
    with contextlib.suppress(errors.BadConfigurationError):
        cluster = tasks.parse(os.environ.get(environment.TF_CONFIG))
        return "" if cluster.alone else cluster.task.name
    return ""
