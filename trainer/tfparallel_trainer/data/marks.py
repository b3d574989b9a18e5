"""A number by which processes notice that they were not given the same examples.

It says little about examples that are nearly the same: processors may round differently.
"""

import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from tfparallel_trainer.data import nest

_WEIGHTS = 97
_ROWS = 64
_ALIKE = 1e-8
"""Variance, relative to the mean's square, up to which numbers are taken as the same."""


def of(examples: Any) -> float:
    """A number, not negative, that follows from the values and their places."""
    return sum(_of(np.asarray(leaf)) for leaf in nest.leaves(examples))


def spread(arrays: Any, length: int) -> float:
    """The number of some rows of arrays, and of how many there are."""
    places = np.unique(np.linspace(0, length - 1, _ROWS).astype(np.int64))
    return length + of(nest.convert(lambda array: array[places], arrays))


def summands(mark: float) -> list[float]:
    """What each process adds to a sum over all, for `alike`."""
    return [1.0, mark, mark * mark]


def alike(sums: Sequence[float]) -> bool:
    """Whether all processes had the same mark, from the sums of their summands."""
    count, total, squares = sums
    # What is not finite is told by the loss.
    return not squares * count - total * total > _ALIKE * total * total


def _of(array: Any) -> float:
    if array.dtype.kind in "OSU":
        return float(zlib.crc32(repr(array.tolist()).encode()))
    values = np.abs(array.astype(np.float64)).ravel()
    return float(values @ (1 + np.arange(values.size) % _WEIGHTS / _WEIGHTS))
