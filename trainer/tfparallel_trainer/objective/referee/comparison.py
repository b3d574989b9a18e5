"""How far apart two computations of the same result lie, and how far rounding may move them.

Of an array, only its products with a few random vectors are kept. The root of the mean square of
their differences is about the norm of the difference of two arrays. So a check keeps no second
copy of gradients, and ranks exchange few numbers.

A difference is relative to the norm of the array. Sums of the same numbers in different orders
differ by about √n roundings, n of them; n is below 2^20, and a step has a few such sums one after
the other. So `LIMITS` allows about 2^11 roundings of float32. Keras computes some of float64 in
float32, such as CTC, with which float64 has a limit of a few roundings of float32. Of types with
less precision only differences are found that are far above a rounding.

A change of a variable is relative to the change, plus what storing the variable may round.
"""

import functools
from typing import Any

import keras
import ml_dtypes
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfparallel_trainer.objective import checks

LIMITS = {"float64": 2e-7, "float32": 2e-4, "float16": 0.1, "bfloat16": 0.1}
_STORED = 8.0
"""Roundings of a variable that an optimizer may make."""
SMALL = 1e-3
"""Norm of a gradient, relative to all gradients, below which it may be what rounding left."""
REPETITIONS = 3
"""Number of times that a check is repeated if it finds a difference."""
DISPLACEMENT = 1e-3
"""How far the weights are moved before a check is repeated, relative to them."""
ROUNDINGS = 30.0
"""Factor by which a fault exceeds the rounding that repeated checks measure."""
PROJECTIONS = 8
_LENGTH = 4093
"""Of a vector, a prime; for longer arrays it is repeated, with changing signs."""
_LEAST, _MOST = 1e-200, 1e6

Array = npt.NDArray[np.float64]


def limit_of(model: Any) -> float:
    """The limit of all quantities, from the types that a model computes in."""
    return LIMITS[_coarsest(model)]


def precision_of(model: Any) -> float:
    """How much one rounding may change a number, relative to it."""
    return _rounding(tf.as_dtype(_coarsest(model)))


def storing(dtype: tf.DType, limit: float) -> float:
    """The part of a variable's norm that is added to that of its change."""
    return _STORED * _rounding(dtype) / limit if dtype.is_floating else 0.0


def projections(values: Array, rows: Any = None) -> Array:
    """The products of an array with vectors that all processes know.

    Of a sparse gradient, values [n, …] are added to rows of an array of zeros.
    """
    with np.errstate(all="ignore"):  # what is not a number stays so, and is left out of comparisons
        return _products(values, rows)


def norms(projected: Any) -> Any:
    """About the norms of arrays [n], from their projections [n, PROJECTIONS]."""
    with np.errstate(all="ignore"):
        return np.sqrt(np.mean(np.square(projected), -1))


def relative(apart: Any, scales: Any) -> Any:
    """Norms relative to others; what is not a number is none of them: the loss tells."""
    with np.errstate(all="ignore"):
        shares = np.minimum(apart / np.maximum(scales, _LEAST), _MOST)
        return np.where(np.isfinite(apart) & np.isfinite(scales) & (apart > 0), shares, 0.0)


def _products(values: Array, rows: Any) -> Array:
    if rows is not None:
        width = values.size // max(len(rows), 1)
        places = (rows[:, np.newaxis] * width + np.arange(width)).reshape(-1)
        turned = values.reshape(-1) * _signs(places // _LENGTH)
        return np.asarray(turned @ _vectors()[places % _LENGTH])
    flat, turns = values.reshape(-1), values.size // _LENGTH
    folded = np.zeros(_LENGTH)
    if turns:
        folded += _signs(np.arange(turns)) @ flat[: turns * _LENGTH].reshape(turns, _LENGTH)
    remaining = flat[turns * _LENGTH :]
    folded[: len(remaining)] += _signs(np.array(turns)) * remaining
    return np.asarray(folded @ _vectors())


def _coarsest(model: Any) -> str:
    dtypes = [
        layer.compute_dtype for layer in checks.layers(model) if layer.compute_dtype in LIMITS
    ]
    return str(max(dtypes, key=LIMITS.__getitem__, default=keras.config.floatx()))


def _rounding(kind: tf.DType) -> float:
    return float(ml_dtypes.finfo(kind.as_numpy_dtype).eps)  # type: ignore[no-untyped-call]


def _signs(turns: Any) -> Any:
    return np.where(turns * 2654435761 % 97 < 48, 1.0, -1.0)


@functools.cache
def _vectors() -> Array:
    generator = np.random.Generator(np.random.Philox(2))
    return generator.standard_normal((_LENGTH, PROJECTIONS))
