"""What an exception means for the run: which exit code, and which sentence."""

import contextlib
import errno
import os
import re
from collections.abc import Iterator

import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.lifecycle import error_classes, stall

_PEER_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
)
_PEER_WORDS = ("Collective", "heartbeat", "RecvBuf", "coordination", "Connection reset")
_REFUSED = (errno.ENOENT, errno.EEXIST, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR)
_NOISE = (
    "File ",
    "Graph execution error",
    "Detected at node",
    "[[{{node",
    "Additional GRPC error",
    ":UNKNOWN:",
    "RPC: ",
    "The error could be from a previous operation",
)
_DISK_FULL = os.strerror(errno.ENOSPC)
_DEVICE_FULL = "CUDA_ERROR_OUT_OF_MEMORY"
_TIMED_OUT = "Collective has timed out"
_UNLIKE = "mismatch in the collective"
"""In what TensorFlow says of ranks that bring tensors of different shapes or types."""
_USERS = (
    tf.errors.InvalidArgumentError,
    tf.errors.NotFoundError,
    tf.errors.OutOfRangeError,
    tf.errors.UnimplementedError,
    tf.errors.DataLossError,
)
_HISTORY = re.compile(r'File "([^"\n]{1,500})", line (\d{1,9}), in ')
"""A frame of what made an operation, as TensorFlow writes it behind the message."""
_LONGEST_MESSAGE = 300
_PYTHON = "Traceback (most recent call last)"
"""Within an error of TensorFlow: Python code raised that the graph calls, as by tf.py_function."""


def translate(error: Exception, alone: bool, module: user.Module | None) -> errors.TrainerError:
    """Say what an exception means that ended a run; one of which nothing is known is raised."""
    if isinstance(error, errors.UserCodeError) and module is not None:
        module.locate(error)
    if isinstance(error, errors.TrainerError):
        return error
    text = _message(error)
    if isinstance(error, tf.errors.ResourceExhaustedError) and _DISK_FULL in text:
        return errors.StorageError(f"A file cannot be written ({text}): see the disk's space.")
    if isinstance(error, (MemoryError, tf.errors.ResourceExhaustedError)) or _DEVICE_FULL in text:
        return errors.OutOfMemoryError(
            f"There is no memory left ({text}): lower trainer.globalBatchSize, use more replicas, "
            "or give each replica more memory."
        )
    if isinstance(error, tf.errors.OpError):
        return _of_operation(error, text, alone, module)
    if isinstance(error, OSError) and error.errno in _REFUSED:
        return errors.BadConfigurationError(
            f"A file cannot be used ({text}): see that it is there and its permissions."
        )
    if isinstance(error, OSError):
        return errors.StorageError(
            f"A file cannot be read or written ({text}): see the disk's space."
        )
    if error_classes.of_device(error):
        return _of_device(text)
    raise error


@contextlib.contextmanager
def locating_timeouts(watch: stall.Watch) -> Iterator[None]:
    """Say where the run stood if a collective of the body times out.

    Raises:
        errors.StalledError: a collective has timed out.
    """
    try:
        yield
    except tf.errors.OpError as error:
        text = _message(error)
        if _TIMED_OUT not in text:
            raise
        raise errors.StalledError(
            f"{watch.describe_timeout(error)}A rank did not take part in a collective ({text})."
        ) from error


def _of_device(text: str) -> errors.TrainerError:
    return errors.DeviceError(f"A device failed ({text}). {error_classes.DEVICE_HELP}")


def _of_operation(
    error: tf.errors.OpError, text: str, alone: bool, module: user.Module | None
) -> errors.TrainerError:
    if module is not None and _UNLIKE in text:
        return errors.UserCodeError(
            f"Replicas of the model do not compute the same ({text}). Let all processes and "
            "devices build one model, with the same weights trained.",
            place=module.find_place("build_model"),
        )
    if not alone and (isinstance(error, _PEER_LOST) or any(word in text for word in _PEER_WORDS)):
        return errors.PeerLostError(f"A peer was lost ({text}).")
    if error_classes.of_device(error):
        return _of_device(text)
    if error_classes.of_storage(error):
        return errors.StorageError(f"Storage did not answer ({text}): see the data's address.")
    if module is not None and (isinstance(error, _USERS) or _PYTHON in str(error)):
        return errors.UserCodeError(
            f"training raised {type(error).__name__}: {text}. See whether the data fits the model "
            "(labels within the classes, no missing values).",
            user.trace(error, module.path.parent),
            place=_find_line(error, module),
        )
    return errors.TrainerError(f"TensorFlow failed: {type(error).__name__}: {text}")


def _find_line(error: tf.errors.OpError, module: user.Module) -> str:
    """Return the user's line that made the failed operation, where TensorFlow's history has it."""
    folder = f"{module.path.parent}{os.sep}"
    made_in = [
        (filename, line)
        for filename, line in _HISTORY.findall(str(error))
        if filename.startswith(folder)
    ]
    if not made_in:
        return user.find_line(error, module.path.parent) or str(module.path)
    filename, line = made_in[-1]
    return f"{filename}:{line}"


def _message(error: Exception) -> str:
    """The message itself, without the graph's history that TensorFlow writes around it."""
    lines = [line.strip() for line in str(error).splitlines()]
    text = " ".join(line for line in lines if line and not line.startswith(_NOISE))
    return error_classes.shorten(text)[:_LONGEST_MESSAGE]
