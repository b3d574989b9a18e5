"""Faults of devices, storage and networks that may be gone when the job runs again."""

import errno
import os
import re
import socket
import urllib.error
from collections.abc import Iterator

import tensorflow as tf

from tfparallel_trainer import errors

_STORAGE = frozenset(
    {
        errno.EAGAIN,
        errno.EBUSY,
        errno.ECONNABORTED,
        errno.ECONNREFUSED,
        errno.ECONNRESET,
        errno.EHOSTDOWN,
        errno.EHOSTUNREACH,
        errno.EIO,
        errno.ENETDOWN,
        errno.ENETRESET,
        errno.ENETUNREACH,
        errno.ENOTCONN,
        errno.EPIPE,
        errno.EREMOTEIO,
        errno.ESTALE,
        errno.ETIMEDOUT,
        socket.EAI_AGAIN,
    }
)
_STORAGE_WORDS = tuple(
    f"{sign} {os.strerror(number)}" for number in _STORAGE if number > 0 for sign in (";", "]")
)
"""Text that TensorFlow's file systems write after a path, and Python after a number, in errors."""
_DEVICE = re.compile(r"CUDA|cuda[A-Z_]|cuDNN|CUDNN|cuBLAS|CUBLAS|NCCL|\bXid\b|\bECC\b")
_RUNTIME = re.compile(r"CUDA_ERROR|CUDA runtime|cudaError|NCCL|\bXid\b")
"""In a RuntimeError, as TensorFlow raises when it opens devices; others may speak of CUDA, too."""

_INSTALLATION = re.compile(
    r"INSUFFICIENT_DRIVER|INVALID_PTX|NO_BINARY_FOR_GPU|NO_DEVICE|no kernel image"
)
"""Messages of a working device whose driver does not fit the program, as it never will."""

_SERVER_ERRORS = 500
_TRY_AGAIN = (408, 425, 429)
"""Answers of a server that is too busy, or that got the request too late."""

_NODE = re.compile(r"\{\{(?:function_node|node) [^{}]{0,300}\}\} ?| ?\[Op:\w{1,100}\](?: name:)?")
"""Internal names of TensorFlow, which mean nothing to the author of a model."""

_LONGEST_MESSAGE = 500

DEVICE_HELP = "The job runs again; if it comes back on one node, look at that node's devices."


def read_message(error: BaseException) -> str:
    """Return an exception's message on one line, without internal names of TensorFlow."""
    return shorten(str(error))


def shorten(text: str) -> str:
    """Return a shortened message on one line, without internal names of TensorFlow."""
    return _NODE.sub("", " ".join(text.split()))[:_LONGEST_MESSAGE].rstrip()


def of_storage(error: BaseException) -> bool:
    """Whether an exception comes from storage or a network that did not answer as it does."""
    return any(_passes(cause) for cause in _causes(error))


def of_device(error: BaseException) -> bool:
    """Whether an exception of TensorFlow comes from a device, its libraries or connections."""
    text = str(error)
    if not isinstance(error, (tf.errors.OpError, RuntimeError)) or _INSTALLATION.search(text):
        return False
    pattern = _DEVICE if isinstance(error, tf.errors.OpError) else _RUNTIME
    return pattern.search(text) is not None


def _causes(error: BaseException) -> Iterator[BaseException]:
    for cause in errors.causes(error):
        yield cause
        if isinstance(cause, urllib.error.URLError) and isinstance(cause.reason, BaseException):
            yield cause.reason


def _passes(error: BaseException) -> bool:
    if isinstance(error, urllib.error.HTTPError):
        return error.code >= _SERVER_ERRORS or error.code in _TRY_AGAIN
    if isinstance(error, OSError):
        return error.errno in _STORAGE or isinstance(error, (ConnectionError, TimeoutError))
    if isinstance(error, (tf.errors.UnavailableError, tf.errors.DeadlineExceededError)):
        return True
    text = error.message if isinstance(error, tf.errors.OpError) else ""
    return any(pattern in text for pattern in _STORAGE_WORDS)
