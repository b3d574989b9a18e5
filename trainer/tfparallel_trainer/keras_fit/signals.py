"""Signals while `fit` runs, and the exit code of a script that `fit` ends."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator
from types import TracebackType

from tfparallel_trainer import errors
from tfparallel_trainer.comms import tasks
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.runtime.lifecycle import ending, termination
from tfparallel_trainer.runtime.reporting import console
from tfparallel_trainer.scripts import explanation

_SIGNALS = (signal.SIGTERM, signal.SIGINT)


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
    if sys.excepthook is not _end:
        sys.excepthook = _end


def _end(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    if isinstance(error, errors.TrainerError):
        ending.tell(
            console.Console(_replica(), os.environ.get(environment.FAILURE_FILE, "")), error
        )
        ending.end(error.exit)
    traceback.print_exception(kind, error, trace)
    ending.end(exits.Exit.USER_ERROR if explanation.give(error, os.environ) else 1)


def _replica() -> str:
    """This process's name in logs; empty where it has no peers or TF_CONFIG is not right."""
    with contextlib.suppress(errors.BadConfigurationError):
        cluster = tasks.parse(os.environ.get(environment.TF_CONFIG))
        return "" if cluster.alone else cluster.task.name
    return ""
