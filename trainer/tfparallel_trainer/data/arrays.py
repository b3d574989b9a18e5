"""Examples in arrays, in an order that is the same for any number of ranks."""

from collections.abc import Generator, Mapping
from typing import Any

import keras
import numpy as np
import numpy.typing as npt
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.data import batch_division, fingerprints, nest, order

PARTS = ("x", "y", "sample_weight")
"""Names of the parts that a data function returns."""

_NOT_DENSE = (tf.RaggedTensor, tf.RaggedTensorSpec, tf.SparseTensor, tf.SparseTensorSpec)


class ArraySource:
    """Batches from arrays (x, y, sample_weight), shuffled for each epoch if there is a seed."""

    def __init__(
        self, examples: Any, division: batch_division.BatchSharding, seed: int | None
    ) -> None:
        self._arrays = examples
        self._division = division
        self._seed = seed
        self.examples = batch_division.count(examples)
        self.spec = batch_division.spec(examples)
        self._fingerprint = fingerprints.spread(examples, self.examples)

    def sample(self) -> Any:
        return batch_division.rows(self._arrays, range(1))

    def targets(self, count: int) -> Any:
        _, y, _ = self._arrays
        numbers = np.unique(np.linspace(0, self.examples - 1, count).astype(np.int64))
        return None if y is None else nest.convert(lambda array: array[numbers], y)

    def epoch(self, number: int, start: int) -> Generator[batch_division.Batch, None, None]:
        shuffled = None
        if self._seed is not None:
            shuffled = order.ShuffledOrder(self.examples, self._seed, number)
        for positions in order.batches(self.examples, self._division.batch_size, start):
            parts = [self._rows(part, shuffled) for part in self._division.parts(positions)]
            yield batch_division.Batch(len(positions), parts, self._fingerprint)

    def _rows(self, positions: range, shuffled: order.ShuffledOrder | None) -> Any:
        """The examples at these positions of an order; None: there are none."""
        if not positions or shuffled is None:
            return batch_division.rows(self._arrays, positions)
        numbers = shuffled[positions]
        return nest.convert(lambda array: array[numbers], self._arrays)


def checked(data: Any, function: str) -> Any:
    """Convert the result of a data function to arrays (x, y, sample_weight).

    It may be x, (x,), (x, y) or (x, y, sample_weight), each an array or a structure of arrays of
    the same length. Anything else, and no result at all, is a UserCodeError.
    """
    if isinstance(data, np.ndarray | dict):
        data = (data,)
    if not isinstance(data, tuple) or len(data) not in (1, 2, 3):
        size = f" of {len(data)}" if isinstance(data, (tuple, list)) else ""
        raise errors.UserCodeError(
            f"{function} returns {type(data).__name__}{size}. Return x, (x, y) or "
            "(x, y, sample_weight) of arrays, a tf.data.Dataset or a generator of such single "
            "examples, inputs.Arrays or inputs.Records."
        )
    parts = zip(PARTS, dense_triple(data, function), strict=True)
    examples = tuple(_arrays(part, f"{function} returns", name) for name, part in parts)
    lengths = {
        name: sorted({len(array) for array in nest.leaves(part)})
        for name, part in zip(PARTS, examples, strict=True)
        if part is not None
    }
    summary = ", ".join(f"{name} has {' and '.join(map(str, n))}" for name, n in lengths.items())
    if len({length for n in lengths.values() for length in n}) != 1:
        raise errors.UserCodeError(
            f"{function} returns arrays of different lengths ({summary} examples): give each "
            "example its row in every array."
        )
    if lengths["x"] == [0]:
        raise errors.UserCodeError(f"{function} returns no examples ({summary}): return some.")
    return examples


def dense_triple(data: Any, name: str) -> tuple[Any, Any, Any]:
    """(x, y, sample_weight) of tensors or of their specs; ragged and sparse ones are refused."""
    triple = nest.triple(data)
    for part, content in zip(PARTS, triple, strict=True):
        for leaf in nest.leaves(content):
            if isinstance(leaf, _NOT_DENSE) or hasattr(leaf, "toarray"):  # as SciPy's have it
                kind = type(leaf).__name__.removesuffix("Spec")
                raise errors.UserCodeError(
                    f"{name} gives a {kind} as {part}, and batches of it cannot be divided over "
                    "replicas: make it dense, by .to_tensor(), tf.sparse.to_dense or .toarray()."
                )
    return triple


def weights_of_classes(y: Any, class_weight: Mapping[int, float]) -> npt.NDArray[Any]:
    """The weight of each target's class; 1 for classes that are not named. Requires y."""
    if y is None:
        raise errors.UserCodeError("class_weight is given, and the data has no y: remove it.")
    classes = np.asarray(y)
    if classes.ndim > 1:
        one_hot = classes.shape[-1] != 1
        classes = np.argmax(classes, -1) if one_hot else np.squeeze(classes, -1)
    labels, places = np.unique(np.round(classes).astype(np.int64), return_inverse=True)
    weights = [class_weight.get(int(number), 1.0) for number in labels]
    return np.asarray(weights, keras.config.floatx())[places.reshape(classes.shape)]


def _arrays(part: Any, subject: str, name: str) -> Any:
    def convert(value: Any) -> Any:
        array = np.asarray(value)
        if array.ndim == 0:
            raise errors.UserCodeError(
                f"{subject} {value!r} in {name}, where an array belongs (a list is taken as "
                "several arrays): make it an array with numpy.asarray."
            )
        if array.dtype == object:
            raise errors.UserCodeError(
                f"{subject} rows of different lengths or of mixed types in {name}: make each array "
                "rectangular, of numbers or strings."
            )
        return array

    return nest.convert(convert, part)
