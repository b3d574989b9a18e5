"""Finds the order in which a tf.data.Dataset yields its elements in each pass, as far as possible.

A shuffle with a seed yields another permutation each time that a reader starts. So after a restart,
the data set must be started as often as before. The parts of a data set are not public. If a part
is unknown, passes are read to their end, which is right for every data set.
"""

from collections.abc import Iterator
from typing import Any

import tensorflow as tf

_BEGIN_WITH_THE_WHOLE = {
    "BatchDataset",
    "DenseToRaggedDataset",
    "FilterDataset",
    "MapDataset",
    "OptionsDataset",
    "PaddedBatchDataset",
    "ParallelBatchDataset",
    "ParallelMapDataset",
    "PrefetchDataset",
    "ShardDataset",
    "SkipDataset",
    "TakeDataset",
    "ZipDataset",
}
"""Data sets that begin to read what they are made of once, and when they are begun themselves."""


def in_order(data: tf.data.Dataset) -> tf.data.Dataset:
    """The data set with its elements in a fixed order, even if several threads produce them."""
    options = tf.data.Options()
    options.deterministic = True
    return data.with_options(options)


def skip(data: tf.data.Dataset, begun: Iterator[Any] | None) -> None:
    """Skip a pass, of which `begun` is the remainder. Later passes keep their order."""
    elements = iter(data) if begun is None else begun
    if not _is_begun_at_once(data):
        for _ in elements:
            pass


def shuffles_without_seed(data: tf.data.Dataset) -> bool:
    """Whether the order differs in each run of a script."""
    return any(
        int(node._seed) == 0 and int(node._seed2) == 0
        for node in _nodes(data)
        if isinstance(getattr(node, "_seed", None), tf.Tensor) and hasattr(node, "_seed2")
    )


def share_a_shuffle(data: tf.data.Dataset, other: tf.data.Dataset) -> bool:
    """Whether reading one of two data sets changes the order of the other."""
    nodes = {id(node) for node in _nodes(data) if _reshuffles(node)}
    return any(id(node) in nodes for node in _nodes(other))


def _is_begun_at_once(data: Any) -> bool:
    """Whether all shuffles of a data set start with it, and once."""
    if not any(map(_depends_on_pass, _nodes(data))):
        return True
    if _kind(data) == "ShuffleDataset":  # begins its input when its first element is asked for
        return not any(map(_depends_on_pass, _nodes(*data._inputs())))
    return _kind(data) in _BEGIN_WITH_THE_WHOLE and all(map(_is_begun_at_once, data._inputs()))


def _kind(node: Any) -> str:
    return type(node).__name__.lstrip("_")


def _nodes(data: Any) -> Iterator[Any]:
    """A data set and all its inputs."""
    yield data
    for inner in data._inputs():
        yield from _nodes(inner)


def _depends_on_pass(node: Any) -> bool:
    """Whether a part may give other elements in the next pass; of a variant nothing is known."""
    return _reshuffles(node) or _captures(node) or _kind(node) == "VariantDataset"


def _reshuffles(node: Any) -> bool:
    return bool(getattr(node, "_reshuffle_each_iteration", False))


def _captures(node: Any) -> bool:
    """Whether its functions read data sets, which are not among its inputs."""
    return any(
        tensor.dtype == tf.variant
        for wrapped in node._functions()
        for tensor in wrapped.function.captured_inputs
    )
