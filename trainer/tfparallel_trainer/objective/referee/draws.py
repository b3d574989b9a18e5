"""Makes random numbers equal for every division of a batch while a check is traced.

A rank draws for its own examples, so that different divisions draw different numbers. While a check
is traced, Keras' operations draw once and repeat that along each dimension of unknown size, which
is the examples' or a length that all ranks have in common. Both sides of a check draw so.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import random as backend  # layers draw from it
from tensorflow.python.framework import tensor_util

from tfparallel_trainer.objective import trial


@contextlib.contextmanager
def alike(examples: frozenset[int] = frozenset()) -> Iterator[None]:
    """Draw alike for all examples, in what this thread traces in the body.

    Known sizes of the first dimension that are those of `examples` count as unknown.
    """
    thread = threading.get_ident()

    def here(replacement: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
        def choose(*arguments: Any, **named: Any) -> Any:
            if threading.get_ident() != thread or tf.executing_eagerly():
                return original(*arguments, **named)
            return replacement(examples, original, *arguments, **named)

        return choose

    replacements: dict[str, Callable[..., Any]] = dict.fromkeys(trial.SHAPED, _shaped)
    replacements |= {"dropout": _dropout, "categorical": _categorical, "shuffle": _shuffle}
    substitutes = {
        name: here(replacement, getattr(backend, name))
        for name, replacement in replacements.items()
    }
    with trial.substituted(backend, substitutes):
        yield


def _shaped(
    examples: frozenset[int],
    original: Callable[..., Any],
    shape: Any,
    *arguments: Any,
    **named: Any,
) -> Any:
    sizes = _sizes(shape, examples)
    if sizes is None or None not in sizes:
        return original(shape, *arguments, **named)
    values = original([size or 1 for size in sizes], *arguments, **named)
    return tf.broadcast_to(values, shape)


def _dropout(
    examples: frozenset[int],
    original: Callable[..., Any],
    inputs: Any,
    rate: Any,
    noise_shape: Any = None,
    seed: Any = None,
) -> Any:
    sizes = _sizes(inputs.shape.as_list() if noise_shape is None else noise_shape, examples)
    static_shape = [size or 1 for size in sizes or ()]
    # What a caller leaves open is the size of the inputs there.
    for axis, size in enumerate(noise_shape if isinstance(noise_shape, (list, tuple)) else ()):
        if size is None:
            static_shape[axis] = 1 if axis == 0 else inputs.shape[axis] or 1
    return original(inputs, rate, noise_shape=static_shape or noise_shape, seed=seed)


def _categorical(
    examples: frozenset[int],
    original: Callable[..., Any],
    logits: Any,
    num_samples: int,
    dtype: str = "int64",
    seed: Any = None,
) -> Any:
    if logits.shape[0] is not None and logits.shape[0] not in examples:
        return original(logits, num_samples, dtype=dtype, seed=seed)
    # The same numbers for each example, by what makes a choice of them: Gumbel's noise.
    shape = (num_samples, logits.shape[-1])
    uniform = backend.uniform(shape, 1e-7, 1.0, dtype=logits.dtype.name, seed=seed)
    noise = -tf.math.log(-tf.math.log(uniform))
    return tf.cast(tf.argmax(logits[:, tf.newaxis] + noise, -1), dtype)


def _shuffle(
    examples: frozenset[int], original: Callable[..., Any], x: Any, axis: int = 0, seed: Any = None
) -> Any:
    if x.shape[axis] is not None and not (axis == 0 and x.shape[0] in examples):
        return original(x, axis=axis, seed=seed)
    return x  # each division orders the examples of a batch differently


def _sizes(shape: Any, examples: frozenset[int]) -> Sequence[int | None] | None:
    """The sizes of a shape, None for those that are unknown while tracing, or are the examples'."""
    if tf.is_tensor(shape):
        partial = tensor_util.constant_value_as_shape(shape)
        sizes = None if partial.rank is None else partial.as_list()
    else:
        static_sizes = [tf.get_static_value(size) if tf.is_tensor(size) else size for size in shape]
        sizes = [None if size is None else int(size) for size in static_sizes]
    if sizes and sizes[0] in examples:
        sizes[0] = None
    return sizes
