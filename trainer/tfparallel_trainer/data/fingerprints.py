"""Numbers by which processes notice that they were not given the same examples.

Numbers that are not floats, and texts, have to be the same bit by bit: of them a fingerprint has a
checksum. Processors may round floats differently, so of them it has the products with vectors that
are drawn once: for other data, and for the same data in another order, these differ by about as
much as the values are large.
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
"""Of a vector, a prime; for longer values it is repeated, each time with another factor."""
_TURNS = 97
_PIECES = 3
_PIECE_BITS = 12
"""Sums of squares of so small integers over ten thousand processes are exact in float64."""
_ROWS = 64
_EXAMPLES = 8
"""About how many examples of a batch it covers: to read all of a large batch takes time."""
_ALIKE = 1e-12
"""Variance, relative to the mean square of all products, up to which floats are the same."""

NOTHING: Fingerprint = (0.0,) * (_VECTORS + _PIECES)
SUMMANDS = 1 + 2 * len(NOTHING)
"""How many numbers `summands` gives."""


def compute(examples: Any) -> Fingerprint:
    """A fingerprint that follows from the values and their places."""
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
    """What each process adds to a sum over all, for `alike`."""
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
