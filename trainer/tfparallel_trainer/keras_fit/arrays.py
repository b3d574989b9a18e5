"""Arrays as Keras' fit takes them: weights of classes, a part to validate on, epochs of steps."""

import itertools
import math
import warnings
from collections.abc import Generator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batching, nest, order

DEFAULT_BATCH = 32
"""Keras' own."""


def examples(x: Any, y: Any, sample_weight: Any, what: str) -> Any:
    """Check arrays and give them as Keras would: (x, y, sample_weight), numbers in its floatx.

    Args:
        x: inputs.
        y: targets, or None.
        sample_weight: one for each example, or None.
        what: name of the argument, for the messages.

    Raises:
        UserCodeError: they are no arrays, or of different lengths.
    """
    data = tuple(nest.convert(_array, part) for part in (x, y, sample_weight))
    return arrays.checked(data, what)


def weighted(data: Any, class_weight: Mapping[int, float]) -> Any:
    """Give each example the weight of its class.

    Raises:
        UserCodeError: there are weights of examples too, or several outputs.
    """
    x, y, sample_weight = data
    if sample_weight is not None:
        raise errors.UserCodeError(
            "class_weight and sample_weight are both given: multiply them into sample_weight."
        )
    if keras.tree.is_nested(y):
        raise errors.UserCodeError(
            "class_weight is given for a model with several outputs: use sample_weight with one "
            "array for each."
        )
    return x, y, arrays.weights_of_classes(y, class_weight)


def split(data: Any, share: float) -> tuple[Any, Any]:
    """Divide examples into those to train on and the last ones, to validate on.

    Raises:
        UserCodeError: a part would be empty.
    """
    length = len(nest.leaves(data)[0])
    at = math.floor(length * (1.0 - share))
    if not 0 < at < length:
        raise errors.UserCodeError(
            f"validation_split is {share}, which leaves one part of {length} examples empty: give "
            "a number between 0 and 1 that fits, or more examples."
        )
    return (
        nest.convert(lambda array: array[:at], data),
        nest.convert(lambda array: array[at:], data),
    )


class Training:
    """The examples to train on; a `batching.Undivided`.

    Args:
        data: what `examples` gave.
        seed: shuffles them for each pass; None keeps their order.
        steps: batches in an epoch; None: all that there are.
        first_epoch: the number of the first epoch.
    """

    def __init__(self, data: Any, seed: int | None, steps: int | None, first_epoch: int) -> None:
        self._data = data
        self._seed = seed
        self._steps = steps
        self._first = first_epoch

    def divided(self, division: batching.Division) -> batching.Source:
        """Cut batches in this way."""
        whole = arrays.ArraySource(self._data, division, self._seed)
        if self._steps is None:
            return whole
        return Windows(whole, division.batch_size, self._steps, self._first)


class Validation:
    """The examples to validate on, in their own order; a `batching.Undivided`.

    Args:
        data: what `examples` gave.
        batch_size: examples in a batch; it changes no result.
        steps: how many batches are used; None: all.
    """

    def __init__(self, data: Any, batch_size: int, steps: int | None) -> None:
        self._data = data
        self._batch_size = batch_size
        self._steps = steps

    def divided(self, division: batching.Division) -> batching.Source:
        """Cut batches for the same ranks."""
        used = self._data
        if self._steps is not None:
            kept = self._steps * self._batch_size
            used = nest.convert(lambda array: array[:kept], used)
        batch_division = batching.Division(self._batch_size, division.ranks, division.local_ranks)
        return arrays.ArraySource(used, batch_division, None)


class Windows:
    """Epochs of a number of steps over examples that are gone through again and again.

    As in Keras' fit, an epoch goes on where the one before has stopped. It ends early where the
    examples do, and the next one begins with the first of them.
    """

    def __init__(
        self, whole: batching.Source, batch_size: int, steps: int, first_epoch: int
    ) -> None:
        self._whole = whole
        self.examples = min(steps * batch_size, whole.examples or 0)
        """Examples in an epoch of full batches."""
        self.spec = whole.spec
        self.sample = whole.sample
        self._batch_size = batch_size
        self._steps = steps
        self._first = first_epoch
        self._batches = order.steps(whole.examples or 0, batch_size)
        self._windows = -(-self._batches // steps)
        if self._batches < steps:
            warnings.warn(
                f"steps_per_epoch is {steps} and the examples make {self._batches} batches: an "
                "epoch ends with them.",
                stacklevel=2,
            )

    def epoch(self, number: int, start: int) -> Generator[batching.Batch, None, None]:
        """The batches of an epoch from its example `start` on."""
        passed, window = divmod(number - self._first, self._windows)
        done = order.steps(start, self._batch_size)
        first = window * self._steps * self._batch_size
        rest = self._whole.epoch(passed, first + start)
        yield from itertools.islice(rest, self._steps - done)


def _array(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(keras.config.floatx(), copy=False)
    return array
