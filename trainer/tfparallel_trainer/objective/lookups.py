"""Finds whether the examples of a batch name the rows of a sparse gradient, or something else.

Several look-ups of one table have one gradient, with the slices of each look-up one after the
other. TensorFlow concatenates them by `ConcatV2`, and this module separates them again. The graph
of a traced step shows what names the rows. If it is traced for batches of unknown size, rows that
are known while tracing cannot depend on a batch. Other rows depend on it if an example, or a random
number, leads to them. The length of examples does not count.
"""

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives

Rows = tuple[int, ...]

_SAME_ROWS = frozenset({"Cast", "Identity", "Reshape", "StopGradient", "ExpandDims", "Squeeze"})
"""Operations that change neither numbers nor their order."""


@dataclasses.dataclass(frozen=True, slots=True)
class Lookup:
    """One look-up of rows of a table."""

    of_batch: bool
    """Whether the examples name the rows."""
    rows: Rows | None = None
    """The rows, if they are known while tracing."""
    rows_per_example: int | None = None
    """How many rows each example names, if the graph shows that all name as many."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shares:
    """How many examples each rank has in a step, which every rank knows before it."""

    examples: tf.Tensor
    """int64 [ranks]"""
    most: int
    """No rank has more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slices:
    """The part of a sparse gradient that belongs to one look-up."""

    lookup: Lookup
    indices: tf.Tensor
    values: tf.Tensor

    def with_values(self, values: tf.Tensor) -> "Slices":
        """The same rows with other values."""
        return dataclasses.replace(self, values=values)


def find_lookups(
    gradient: tf.IndexedSlices, known_rows: Collection[Rows] | None = None
) -> tuple[Lookup, ...]:
    """Return the look-ups that a tape's gradient comes from, in the order of its slices.

    `known_rows` are rows that do not follow from the batch; None if the graph is traced for
    batches of unknown size. Then no rows that are known while tracing do.
    """
    return tuple(_lookup(indices, known_rows) for indices in _parts(gradient.indices))


def divide(gradient: tf.IndexedSlices, lookups: Sequence[Lookup]) -> list[Slices]:
    """Return the slices of each look-up. Without examples, those of the batch are empty."""
    parts = _parts(gradient.indices)
    counts: list[Any] = [tf.size(part, tf.int64) for part in parts]
    if len(parts) != len(lookups):
        counts = [len(lookup.rows or ()) for lookup in lookups]
    divided = []
    for lookup, rows, values in zip(
        lookups,
        tf.split(tf.cast(gradient.indices, tf.int64), counts, num=len(lookups)),
        tf.split(gradient.values, counts, num=len(lookups)),
        strict=True,
    ):
        if lookup.rows is not None:
            rows = tf.constant(lookup.rows, tf.int64)  # still known to readers of the sum
            values = tf.ensure_shape(values, [len(lookup.rows), *values.shape[1:]])
        divided.append(Slices(lookup, rows, values))
    return divided


def add(parts: Iterable[Sequence[Slices]]) -> list[Slices]:
    """Add up parts of one gradient from the same look-ups: by the batch, and by known rows."""
    by_batch: list[Slices] = []
    others: list[list[Slices]] = []
    for part in parts:
        by_batch += [part_slices for part_slices in part if part_slices.lookup.of_batch]
        others.append([part_slices for part_slices in part if not part_slices.lookup.of_batch])
    sums = [
        same[0].with_values(tf.add_n([part_slices.values for part_slices in same]))
        for same in zip(*others, strict=True)
    ]
    return [*([_concatenated(by_batch)] if by_batch else []), *sums]


def gather(
    data: collectives.Communicator, slices: Slices, *, adds_mentions: bool = False
) -> Slices:
    """Join the slices of all ranks, or add them up if each rank has those of the same rows.

    If `adds_mentions`, a rank sends the sum for each row instead of each mention.
    """
    if slices.lookup.of_batch:
        if adds_mentions:
            slices = _add_mentions(slices)
        indices, values = data.gather_rows([slices.indices, slices.values])
        return Slices(slices.lookup, indices, values)
    places = tf.range(tf.size(slices.indices, tf.int64))
    places, indices, values = data.gather_rows([places, slices.indices, slices.values])
    count = tf.reduce_max(tf.concat([places, [-1]], 0)) + 1  # ranks without examples have none
    return Slices(
        slices.lookup,
        tf.math.unsorted_segment_max(indices, places, count),
        tf.math.unsorted_segment_sum(values, places, count),
    )


def _add_mentions(slices: Slices) -> Slices:
    rows, places = tf.unique(slices.indices)
    values = tf.math.unsorted_segment_sum(slices.values, places, tf.size(rows))
    return Slices(slices.lookup, rows, values)


def pad(slices: Slices, shares: Shares, rank: int) -> list[tf.Tensor]:
    """Fill the rows and values of a rank up to as many as a rank may have.

    Raises:
        InvalidArgumentError: the step runs, and has another number of rows than was told.
    """
    per_example = slices.lookup.rows_per_example or 0
    rows = tf.reshape(slices.indices, [shares.examples[rank] * per_example])
    most = shares.most * per_example
    padding = most - tf.size(rows)
    values = tf.pad(slices.values, [[0, padding], *[[0, 0]] * (slices.values.shape.rank - 1)])
    return [
        tf.ensure_shape(tf.pad(rows, [[0, padding]]), [most]),
        tf.ensure_shape(values, [most, *values.shape[1:]]),
    ]


def unpad(slices: Slices, shares: Shares, rows: tf.Tensor, values: tf.Tensor) -> Slices:
    """Join what `pad` has returned on all ranks, [ranks, …]."""
    per_example = slices.lookup.rows_per_example or 0
    mask = tf.sequence_mask(shares.examples * per_example, shares.most * per_example)
    return Slices(slices.lookup, tf.boolean_mask(rows, mask), tf.boolean_mask(values, mask))


def separate(gradient: Any) -> Any:
    """The slices of each look-up of a sparse gradient, as a list; a dense gradient as it is."""
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient
    counts = [tf.size(part) for part in _parts(gradient.indices)]
    return [
        tf.IndexedSlices(values, indices, gradient.dense_shape)
        for values, indices in zip(
            tf.split(gradient.values, counts), tf.split(gradient.indices, counts), strict=True
        )
    ]


def rejoin(parts: Any) -> Any:
    """The gradient that `separate` has divided."""
    if not isinstance(parts, list) or len(parts) == 1:
        return parts[0] if isinstance(parts, list) else parts
    values = tf.concat([part.values for part in parts], 0)
    indices = tf.concat([part.indices for part in parts], 0)
    return tf.IndexedSlices(values, indices, parts[0].dense_shape)


def join(parts: Sequence[Slices], dense_shape: tf.Tensor) -> tf.IndexedSlices:
    """Return one gradient from the slices of several look-ups."""
    whole = _concatenated(parts)
    return tf.IndexedSlices(whole.values, whole.indices, dense_shape)


def _concatenated(parts: Sequence[Slices]) -> Slices:
    if len(parts) == 1:
        return parts[0]
    indices = tf.concat([part.indices for part in parts], 0)
    counts = [part.lookup.rows_per_example for part in parts]
    per_example = None if None in counts else sum(count or 0 for count in counts)
    lookup = dataclasses.replace(parts[0].lookup, rows_per_example=per_example)
    return Slices(lookup, indices, tf.concat([part.values for part in parts], 0))


def _parts(indices: tf.Tensor) -> list[tf.Tensor]:
    """The rows of each look-up, of which TensorFlow has joined several."""
    indices = _captured(indices)
    while tf.is_symbolic_tensor(indices) and indices.op.type in {"Identity", "Cast"}:
        indices = _captured(indices.op.inputs[0])
    if tf.is_symbolic_tensor(indices) and indices.op.type == "ConcatV2":
        *parts, _ = indices.op.inputs
        return [indices for part in parts for indices in _parts(part)]
    return [indices]


def _lookup(indices: tf.Tensor, known_rows: Collection[Rows] | None) -> Lookup:
    static = tf.get_static_value(_source(indices))
    if static is not None and (static >= 0).all():
        rows = tuple(int(row) for row in static.reshape(-1))
        if known_rows is None or rows in known_rows:
            return Lookup(of_batch=False, rows=rows)
    if known_rows is not None:
        return Lookup(of_batch=True)
    of_batch = _of_batch(indices)
    per_example = _rows_per_example(_source(indices)) if of_batch else None
    return Lookup(of_batch=of_batch, rows_per_example=per_example)


def _source(tensor: tf.Tensor) -> tf.Tensor:
    """The requested rows, before Keras and TensorFlow change them.

    Keras counts negative rows from the end: where(rows < 0, rows + size, rows).
    """
    while tf.is_symbolic_tensor(tensor):
        if tensor.op.type in _SAME_ROWS:
            tensor = tensor.op.inputs[0]
        elif tensor.op.type == "SelectV2" and tensor.op.inputs[0].op.type == "Less":
            tensor = tensor.op.inputs[2]
        elif tensor is (outer := _captured(tensor)):
            break
        else:
            tensor = outer
    return tensor


def _rows_per_example(source: tf.Tensor) -> int | None:
    """How many numbers of each example a tensor has; None unless it is a part of the examples."""
    is_known = source.shape.rank and source.shape[0] is None and source.shape[1:].is_fully_defined()
    if not is_known:
        return None
    whole = source
    while _has_all_examples(whole.op):
        whole = whole.op.inputs[0]
    is_example = whole.op.type in {"Placeholder", "PlaceholderWithDefault"}
    return source.shape[1:].num_elements() if is_example else None


def _has_all_examples(operation: tf.Operation) -> bool:
    """Whether an operation takes something of each example, as x[:, 0] does."""
    if operation.type != "StridedSlice" or operation.inputs[0].shape[0] is not None:
        return False
    strides = tf.get_static_value(operation.inputs[3])
    takes_all = operation.get_attr("begin_mask") & operation.get_attr("end_mask") & 1
    others = ("ellipsis_mask", "new_axis_mask", "shrink_axis_mask")
    is_other = any(operation.get_attr(name) & 1 for name in others)
    return bool(takes_all and not is_other and strides is not None and strides[0] == 1)


def _captured(tensor: tf.Tensor) -> tf.Tensor:
    """Return the tensor of an outer graph that a function captures, or the tensor itself."""
    if tf.is_symbolic_tensor(tensor) and tensor.op.type == "Placeholder":
        for outer, inner in getattr(tensor.graph, "captures", ()):
            if inner is tensor and tf.is_symbolic_tensor(outer):
                return outer
    return tensor


def _of_batch(tensor: tf.Tensor) -> bool:
    """Whether an example, or a number drawn at random, leads to a tensor."""
    pending, visited = [tensor], set()
    while pending:
        current = pending.pop()
        is_example = current.op.type == "Placeholder" and current.dtype is not tf.resource
        if is_example or "Random" in current.op.type:
            return True
        visited.add(current.ref())
        pending += [cause for cause in _causes(current) if cause.ref() not in visited]
    return False


def _causes(tensor: tf.Tensor) -> Iterator[tf.Tensor]:
    """The inputs of the operation that computes a tensor; none for the length of examples."""
    operation = tensor.op
    if operation.type == "StridedSlice" and operation.inputs[0].op.type == "Shape":
        begin = tf.get_static_value(operation.inputs[1])
        if begin is not None and int(begin[0]) > 0:
            return
    yield from operation.inputs
