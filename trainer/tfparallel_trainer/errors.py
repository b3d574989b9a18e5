"""The errors that end a run early. Each has an exit code."""

from collections.abc import Iterator
from typing import Self

from tfparallel_trainer.contract import exits

_READ_ONLY = "Read-only file system"
"""Linux' message for EROFS, in errors of Python and of TensorFlow."""


class TrainerError(Exception):
    """An error that ends the run with `exit`. Its message is a sentence or a few, for people."""

    exit: exits.Exit = exits.Exit.INTERNAL_ERROR
    everywhere: bool = False
    """Whether every process raises it at the same step, so that each can wait for the others."""
    _keras_call_info_injected = True
    """An attribute that stops Keras from adding arguments and colors to a layer's error."""

    def on_every_process(self) -> Self:
        """Mark an error that every process raises, because all have agreed on its cause."""
        self.everywhere = True
        return self


class BadConfigurationError(TrainerError):
    """The job file, the environment or the strategy cannot work as given."""

    exit = exits.Exit.BAD_CONFIGURATION


class UserCodeError(TrainerError):
    """The user's module, model or data raised an error, or breaks the interface."""

    exit = exits.Exit.USER_ERROR

    def __init__(
        self, sentence: str, trace: str = "", *, place: str = "", function: str = ""
    ) -> None:
        super().__init__(sentence)
        self.trace = trace
        """Traceback of the user's own frames; empty when nothing was raised."""
        self.place = place
        """Path of the user's file, with the line if it is known; empty if nobody knows it yet."""
        self.function = function
        """Function of the user's module that has to change, if no line is known."""
        self.hint = ""
        """A sentence on a similar function in the user's module."""

    def __str__(self) -> str:
        sentence = f"{super().__str__()} {self.hint}".rstrip()
        return f"{self.place}: {sentence}" if self.place else sentence


class NonFiniteError(TrainerError):
    """The loss, a gradient or a weight became NaN or infinite."""

    exit = exits.Exit.NON_FINITE


class VerificationError(TrainerError):
    """A step differs from the same step of one process."""

    exit = exits.Exit.VERIFICATION_FAILED


class DeviceError(TrainerError):
    """A device, its libraries or a connection between devices failed."""

    exit = exits.Exit.DEVICE_FAILED


class StorageError(TrainerError):
    """Data could not be read for now, or a checkpoint or the results could not be written."""

    exit = exits.Exit.STORAGE_FAILED


class StartTimeoutError(TrainerError):
    """A peer did not answer within the start timeout."""

    exit = exits.Exit.START_TIMEOUT


class PeerLostError(TrainerError):
    """A peer died or froze while ranks worked together."""

    exit = exits.Exit.PEER_LOST


class PreemptedError(TrainerError):
    """The run was asked to end, or a newer attempt has taken its place."""

    exit = exits.Exit.PREEMPTED


class OutOfMemoryError(TrainerError):
    """A device or the process has no memory left."""

    exit = exits.Exit.OUT_OF_MEMORY


class StalledError(TrainerError):
    """A step, or what comes before or after the steps, did not end within its limit."""

    exit = exits.Exit.STALLED


def causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that it was raised from or while handling.

    Each comes once: exceptions that several threads raise may name each other in a ring.
    """
    visited: set[int] = set()
    cause: BaseException | None = error
    while cause is not None and id(cause) not in visited:
        visited.add(id(cause))
        yield cause
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)


def is_read_only(error: BaseException) -> bool:
    """Whether an exception, of Python or of TensorFlow, is of a write into a read-only folder."""
    return any(_READ_ONLY in str(cause) for cause in causes(error))
