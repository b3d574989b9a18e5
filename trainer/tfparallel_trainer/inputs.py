"""What data functions may return besides plain arrays and data sets.

    from tfparallel_trainer import inputs

    def training_data():
        return inputs.Arrays(images, labels).map(augment)

Both kinds are read in the trainer's own order, exact for any number of replicas. Each replica reads
only its own examples, several at once. `docs/how-to/data.md` is the description for users.
"""

import copy
import os
from collections.abc import Callable, Sequence
from typing import Any, Self

Function = Callable[..., Any]


class _Mapped:
    """Examples and the functions that each of them goes through."""

    functions: tuple[Function, ...] = ()

    def map(self, function: Function) -> Self:
        """Let each example go through a function of TensorFlow operations.

        It gets what stands for one example, such as (x, y), and returns (x, y) or
        (x, y, sample_weight). One that has a parameter named `seed` gets two integers for
        `tf.random.stateless_…`; they follow from trainer.seed, the epoch and the example alone.
        """
        mapped = copy.copy(self)
        mapped.functions = (*self.functions, function)
        return mapped


class Arrays(_Mapped):
    """Arrays, or structures of arrays, with one row for each example."""

    def __init__(self, x: Any, y: Any, sample_weight: Any = None) -> None:
        self.arrays = (x, y) if sample_weight is None else (x, y, sample_weight)


class Records(_Mapped):
    """TFRecord files that are not compressed, on a disk or in a bucket.

    Args:
        paths: the files, or addresses such as s3://bucket/a.tfrecord. These are copied to the local
            disk first (see `Context.fetch`). Records are numbered in this order.
        parse: makes an example of a record (a scalar string); as a function of `map`.
    """

    def __init__(self, paths: Sequence[str | os.PathLike[str]], parse: Function) -> None:
        self.functions = (parse,)
        self.paths = [os.fspath(path) for path in paths]
