"""Arrays as Keras' fit takes them: weights of classes, a part to validate on, epochs of steps."""

import dataclasses
import itertools
import math
import warnings
from collections.abc import Generator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt

from tfparallel_trainer import errors
from tfparallel_trainer.data import arrays, batch_division, nest, order

DEFAULT_BATCH = 32
"""Keras' own."""


def examples(x: Any, y: Any, sample_weight: Any, what: str) -> Any:
    """Check arrays and give them as Keras would: (x, y, sample_weight), numbers in its floatx."""
    data = tuple(nest.convert(_array, part) for part in (x, y, sample_weight))
    return arrays.checked(data, what)


def weighted(data: Any, class_weight: Mapping[int, float]) -> Any:
    """Give each example the weight of its class; there may be no other weights, and one output."""
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
    """Divide examples into those to train on and the last ones, to validate on."""
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ArrayExamples:
    """What `examples` gave, to train on or to validate on; a `batch_division.Shardable`."""

    data: Any
    batch_size: int
    seed: int | None = None
    """Shuffles them for each pass; None keeps their order."""
    steps: int | None = None
    """Batches in an epoch; None: all that there are."""
    first_epoch: int = 0

    def divided(self, division: batch_division.BatchSharding) -> batch_division.BatchSource:
        """Cut batches of this size for these ranks."""
        cut = dataclasses.replace(division, batch_size=self.batch_size)
        whole = arrays.ArraySource(self.data, cut, self.seed)
        return whole if self.steps is None else _Windows(whole, self, self.steps)


class _Windows:
    """Epochs of a number of steps over examples that are gone through again and again.

    As in Keras' fit, an epoch continues where the one before has stopped. It ends early where the
    examples do, and the next one begins with the first of them.
    """

    def __init__(self, whole: arrays.ArraySource, examples: ArrayExamples, steps: int) -> None:
        self._whole = whole
        self._batch_size = examples.batch_size
        self._steps = steps
        self._first_epoch = examples.first_epoch
        self.examples = min(steps * examples.batch_size, whole.examples)
        """Examples in an epoch of full batches."""
        self.spec = whole.spec
        self.sample = whole.sample
        count = order.steps(whole.examples, examples.batch_size)
        self._windows = -(-count // steps)
        if count < steps:
            warnings.warn(
                f"steps_per_epoch is {steps} and the examples make {count} batches: an "
                "epoch ends with them.",
                stacklevel=2,
            )

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        passed, window = divmod(number - self._first_epoch, self._windows)
        done = order.steps(start, self._batch_size)
        first = window * self._steps * self._batch_size
        windows = self._whole.epoch(passed, first + start)
        yield from itertools.islice(windows, self._steps - done)


def _array(value: Any) -> npt.NDArray[Any]:
    array = np.asarray(value)
    if np.issubdtype(array.dtype, np.floating):
        return array.astype(keras.config.floatx(), copy=False)
    return array
