"""Random examples, targets and predictions for trials, like those of the data.

A loss that uses the batch as a whole may show it only if examples differ. For example, some have a
positive, an object, or a second one of the same class, and others do not. So targets are mixed from
the data's values. The patterns put examples into one batch that its parts have separately. Seeds
are fixed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer.data import nest

PATTERNS = ("rows", "elements", "groups", "pairs")
"""How targets are drawn: the most different rows of the data, or each number by itself. Or each
half of a batch has one value, or the values alternate."""

_CLASSES = 64
"""Maximum number of different values that count as classes."""

_LOOKED_AT = 100_000
"""Maximum number of target values that are examined."""


def targets(pool: Any, count: int, pattern: str, seed: int) -> Any:
    """Draw targets for `count` examples, like those of a pool of arrays [n, …]."""
    return nest.convert(lambda leaf: _target(np.asarray(leaf), count, pattern, seed), pool)


def predictions(outputs: Any, count: int, seed: int) -> Any:
    """Draw predictions for `count` examples in the range of some outputs of a model [n, …]."""
    random = np.random.default_rng(seed)
    return nest.convert(lambda leaf: _prediction(random, np.asarray(leaf), count), outputs)


def near(drawn: Any, y: Any) -> Any:
    """Move predictions [n, …] close to targets of the same shape; others stay as they are."""
    numbers = y.dtype.kind in "biuf" and y.shape == drawn.shape
    return (0.8 * y + 0.2 * drawn).astype(drawn.dtype) if numbers else drawn


def weights(like: Any, count: int, seed: int) -> Any:
    """Draw sample weights for `count` examples, one of them 0."""
    random = np.random.default_rng(seed)

    def draw(leaf: Any) -> Any:
        drawn = random.uniform(0.25, 2.0, (count, *np.shape(leaf)[1:]))
        drawn[1] = 0
        return drawn.astype(np.asarray(leaf).dtype)

    return nest.convert(draw, like)


def varied(part: Any, count: int, seed: int = 0) -> Any:
    """Extend a part [n, …] of few examples to `count`, by similar ones.

    Similar examples follow each other, because parts that alternate would be equal.
    """
    random = np.random.default_rng(seed)

    def draw(leaf: Any) -> Any:
        rows = np.asarray(leaf)[np.arange(count) % len(leaf)]
        for index in range(len(leaf), count):
            shape = rows[index].shape
            # Numbers of classes or words do not change: each column may have its own range.
            if rows.dtype.kind == "f" and np.any(rows[index] != np.round(rows[index])):
                size = max(1e-3, float(np.max(np.abs(rows[index]))))
                mixed = random.permutation(rows[index].reshape(-1)).reshape(shape)
                mixed = mixed * random.uniform(0.5, 1.5) + size * random.normal(0, 0.1, shape)
                rows[index] = mixed
        return rows[np.argsort(np.arange(count) % len(leaf), kind="stable")]

    return nest.convert(draw, part)


def _target(pool: Any, count: int, pattern: str, seed: int) -> Any:
    random = np.random.default_rng(seed)
    if pool.dtype.kind not in "biuf" or pattern == "rows" or not pool.size:
        return pool[_different(pool, count, random)]
    values = _values(pool)
    if _is_one_hot(pool, values):
        classes = _classes(random, pool.shape[-1], (count, *pool.shape[1:-1]), pattern)
        return np.eye(pool.shape[-1], dtype=pool.dtype)[classes]
    if values is None:  # no classes
        values = np.quantile(pool[np.isfinite(pool)], np.linspace(0, 1, 9))
        spread = float(values[-1] - values[0]) or 1.0
        if pattern == "elements":
            drawn = random.choice(pool.reshape(-1)[:_LOOKED_AT], (count, *pool.shape[1:]))
            return (drawn + 0.1 * spread * random.normal(size=drawn.shape)).astype(pool.dtype)
        values = values[[0, -1]]
    return values[_classes(random, len(values), (count, *pool.shape[1:]), pattern)]


def _values(pool: Any) -> Any:
    """The different values of targets that are classes or masks, at least two; else None."""
    values = np.unique(pool.reshape(-1)[:: max(1, pool.size // _LOOKED_AT)])
    if len(values) > _CLASSES or np.any(values != np.round(values)):
        return None
    if len(values) == 1:
        values = np.unique(np.append(values, [0, 1]))[:_CLASSES]
    return values.astype(pool.dtype)


def _is_one_hot(pool: Any, values: Any) -> bool:
    return (
        values is not None
        and pool.ndim > 1
        and pool.shape[-1] > 1
        and set(values.tolist()) == {0, 1}
        and bool(np.all(pool.sum(-1) == 1))
    )


def _classes(random: np.random.Generator, classes: int, shape: Sequence[int], pattern: str) -> Any:
    """The numbers of classes, by a pattern over the first dimension."""
    if pattern == "elements":
        return random.integers(0, classes, shape)
    first, second = random.permutation(classes)[[0, -1]]
    chosen = np.full(shape[0], first)
    chosen[shape[0] // 2 :] = second
    if pattern == "pairs":
        chosen = np.where(np.arange(shape[0]) % 2, first, second)
    return np.broadcast_to(chosen.reshape(-1, *(1,) * (len(shape) - 1)), shape)


def _different(pool: Any, count: int, random: np.random.Generator) -> Any:
    """Choose rows of a pool: each is the farthest from those before it; in order of size."""
    if pool.dtype.kind not in "biuf":
        return random.integers(0, len(pool), count)
    rows = np.nan_to_num(pool.reshape(len(pool), -1).astype(np.float64))
    rows = rows[:, :: max(1, rows.shape[1] // 4096)]
    far = np.linalg.norm(rows - rows[np.argmin(np.abs(rows).sum(1))], axis=1)
    chosen = [int(np.argmin(np.abs(rows).sum(1)))]
    while len(chosen) < count:
        chosen.append(int(np.argmax(far)))
        far = np.minimum(far, np.linalg.norm(rows - rows[chosen[-1]], axis=1))
    return np.array(sorted(chosen, key=lambda index: float(np.abs(rows[index]).sum())))


def _prediction(random: np.random.Generator, outputs: Any, count: int) -> Any:
    shape = (count, *outputs.shape[1:])
    values = outputs.astype(np.float64)
    if outputs.dtype.kind != "f" and "float" not in outputs.dtype.name:
        return np.asarray(outputs)[random.integers(0, len(outputs), count)]
    if values.size and np.min(values) >= 0 and np.max(values) <= 1:
        drawn = random.uniform(0.02, 0.98, shape)
        if values.ndim > 1 and values.shape[-1] > 1 and np.allclose(values.sum(-1), 1, atol=1e-2):
            drawn /= drawn.sum(-1, keepdims=True)
    elif values.size and np.min(values) >= 0:
        drawn = np.exp(random.normal(size=shape))
    else:
        drawn = random.normal(size=shape) * max(1.0, float(np.std(values)))
    return tf.cast(tf.constant(drawn), outputs.dtype).numpy()
