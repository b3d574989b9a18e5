"""Fingerprints by which processes notice that they did not receive the same examples.

Integers and texts must be equal bit by bit, so a fingerprint has a checksum of them. Processors may
round floats differently, so for floats it has products with vectors that are drawn once. For other
data, or for the same data in another order, these products differ by about as much as the values
are large.
"""

import functools
import zlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.data import nest

Fingerprint = tuple[float, ...]

_VECTORS = 4
_LENGTH = 4093
"""Length of a vector, a prime. For longer values, the vector is repeated with other factors."""
_TURNS = 97
_PIECES = 3
_PIECE_BITS = 12
"""Sums of squares of so small integers over ten thousand processes are exact in float64."""
_ROWS = 64
_EXAMPLES = 8
"""Approximate number of examples that a fingerprint covers, because reading a large batch takes
time."""
_ALIKE = 1e-12
"""Variance, relative to the mean square of all products, up to which floats are the same."""

NOTHING: Fingerprint = (0.0,) * (_VECTORS + _PIECES)
SUMMANDS = 1 + 2 * len(NOTHING)
"""The number of values that `summands` returns."""


def compute(examples: Any) -> Fingerprint:
    """A fingerprint of values and their positions."""
    products = np.zeros(_VECTORS)
    checksum = 0
    for index, leaf in enumerate(nest.leaves(examples)):
        array = np.asarray(leaf)
        content = b""
        if array.dtype.kind == "f" or array.dtype.name == "bfloat16":
            products += _products(array) * (1 + index)
        elif array.dtype.kind in "OSU":
            content = repr(array.tolist()).encode()
        else:
            content = np.ascontiguousarray(array).tobytes()
        checksum = zlib.crc32(repr(array.shape).encode() + content, checksum)
    return (*map(float, products), *_pieces(checksum))


def of_batch(whole: Any) -> Fingerprint:
    """The fingerprint of some examples from all over a batch."""
    step = max(len(nest.leaves(whole)[0]) // _EXAMPLES, 1)
    return compute(nest.convert(lambda leaf: leaf[::step], whole))


def spread(arrays: Any, length: int) -> Fingerprint:
    """The fingerprint of some rows of arrays, and of how many there are."""
    places = np.unique(np.linspace(0, length - 1, _ROWS).astype(np.int64))
    rows = nest.convert(lambda array: array[places], arrays)
    return compute((rows, np.int64(length)))


def summands(fingerprint: Fingerprint) -> list[float]:
    """The contribution of a process to a sum over all processes, for `alike`."""
    return [1.0, *fingerprint, *(number * number for number in fingerprint)]


def alike(sums: Sequence[float]) -> bool:
    """Whether all processes had the same fingerprint, from the sums of their summands."""
    count = sums[0]
    if count == 1:
        return True
    totals, squares = np.split(np.asarray(sums[1:]), 2)
    with np.errstate(all="ignore"):  # what is not finite is told by the loss
        variances = squares * count - totals * totals
        allowed = _ALIKE * count * squares[:_VECTORS].sum()
    return not ((variances[:_VECTORS] > allowed).any() or (variances[_VECTORS:] > 0).any())


def _products(array: npt.NDArray[Any]) -> npt.NDArray[np.float64]:
    values = array.astype(np.float64).ravel()
    rows = -(-values.size // _LENGTH)
    padded = np.zeros((rows, _LENGTH))
    padded.ravel()[: values.size] = values
    turns = 1 + np.arange(rows) % _TURNS / _TURNS
    return np.asarray(turns @ (padded @ _vectors()), np.float64)


@functools.cache
def _vectors() -> npt.NDArray[np.float64]:
    return np.random.Generator(np.random.Philox(1)).standard_normal((_LENGTH, _VECTORS))


def _pieces(checksum: int) -> tuple[float, ...]:
    return tuple(
        float(checksum >> _PIECE_BITS * piece & (1 << _PIECE_BITS) - 1) for piece in range(_PIECES)
    )
