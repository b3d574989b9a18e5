"""Lets convolutions and pools compute with no examples.

With oneDNN, TensorFlow's convolution of an empty batch has the shape of its input, and the gradient
of a pool ends the process. A rank without examples of a short batch would send sums of another
shape than its peers.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import nn  # layers compute by what it holds

_NAMES = (
    "average_pool",
    "conv",
    "conv_transpose",
    "depthwise_conv",
    "max_pool",
    "separable_conv",
)
_ORIGINALS: dict[str, Callable[..., Any]] = {name: getattr(nn, name) for name in _NAMES}
_lock = threading.Lock()
_uses = 0
"""Number of active bodies of `padded`: a strategy traces its replicas in threads."""


@contextlib.contextmanager
def padded() -> Iterator[None]:
    """Let Keras compute with one example of zeros more in the body, and drop what it gives."""
    _count(1)
    try:
        yield
    finally:
        _count(-1)


def _pad(name: str) -> Callable[..., Any]:
    original = _ORIGINALS[name]

    def compute(inputs: Any, *arguments: Any, **options: Any) -> Any:
        tensor = tf.convert_to_tensor(inputs)
        longer = tf.pad(tensor, [[0, 1], *[[0, 0]] * (tensor.shape.rank - 1)])
        return original(longer, *arguments, **options)[:-1]

    return compute


def _count(difference: int) -> None:
    global _uses
    with _lock:
        _uses += difference
        for name in _NAMES:
            setattr(nn, name, _pad(name) if _uses else _ORIGINALS[name])
