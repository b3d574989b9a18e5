"""Adds up gradients over ranks without changing their kind, and checks that they are finite.

A sparse gradient (tf.IndexedSlices, from an embedding) names some rows several times. Keras
optimizers do not treat it as the dense gradient of the same sum: Adam squares each mention of a row
by itself, and clipping takes the norm over mentions. So the gradient of one process with the whole
batch depends on what names the rows (`lookups`). If the examples name them, the mentions of all
ranks are gathered, in the order of the examples. That costs the touched rows, not the table. If not
(a table of positions), all ranks have the same mentions, whose values are added.

SGD and Lion take nothing but the sum for each row, if they do not clip. Then a small table travels
as a whole, and elsewhere a rank sends each row once, where its message can be that much shorter.
"""

import dataclasses
import enum
import math
from collections.abc import Collection, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import lookups, packed_updates, row_updates


class Form(enum.Enum):
    """The form in which the tape returns a variable's gradient."""

    ABSENT = "absent"
    """The loss does not depend on the variable."""
    DENSE = "dense"
    SPARSE = "sparse"


class Exchange(enum.Enum):
    """What ranks send of a sparse gradient."""

    MENTIONS = "mentions"
    """Each mention of a row."""
    ROWS = "rows"
    """The sum for each row, where ranks tell how many rows they have; elsewhere each mention. Where
    examples name as many rows, a message has room for all of them, so sums would not shorten it."""
    TABLE = "table"
    """The sum for each row of the table."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a variable's gradient, the same on every rank that has examples."""

    form: Form
    sources: tuple[lookups.Lookup, ...] = ()
    """The look-ups that a sparse gradient comes from, in the order of its slices."""
    exchange: Exchange = Exchange.MENTIONS


def classify(gradient: Any, known_rows: Collection[lookups.Rows] | None = None) -> Kind:
    """Return the kind of a gradient; `known_rows` is as in `lookups.find_lookups`."""
    if gradient is None:
        return Kind(Form.ABSENT)
    if isinstance(gradient, tf.IndexedSlices):
        return Kind(Form.SPARSE, lookups.find_lookups(gradient, known_rows))
    return Kind(Form.DENSE)


def choose_exchange(
    kind: Kind, variable: Any, data: collectives.Communicator, optimizer: Any, full_part: int
) -> Kind:
    """Choose what ranks send of a gradient, from what is the same on each of them.

    A table travels as a whole if that is fewer bytes than the rows of a full batch. Of this, a rank
    has up to `full_part` examples.
    """
    if kind.form is not Form.SPARSE or not row_updates.adds_mentions(optimizer):
        return kind
    exchange = Exchange.ROWS
    counts = [lookup.rows_per_example for lookup in kind.sources if lookup.of_batch]
    if counts and None not in counts:
        rows = full_part * sum(count or 0 for count in counts)
        row_bytes = math.prod(variable.shape[1:]) * tf.as_dtype(variable.dtype).size
        gathered = data.count_gathered_bytes(rows * (row_bytes + tf.int64.size))
        if gathered > data.count_summed_bytes(variable.shape[0] * row_bytes):
            exchange = Exchange.TABLE
    return dataclasses.replace(kind, exchange=exchange)


def describe_tables(kinds: Sequence[Kind], variables: Sequence[Any]) -> str:
    """Return which sparse gradients travel as whole tables, for people; empty if none does."""
    paths = [
        variable.path
        for kind, variable in zip(kinds, variables, strict=True)
        if kind.exchange is Exchange.TABLE
    ]
    return f"ranks add up the whole gradient of {', '.join(paths)}" if paths else ""


def zeros(kinds: Sequence[Kind], variables: Sequence[Any]) -> list[Any]:
    """The summands of a rank without examples: zeros, or no rows, of these kinds."""
    return [_zero(kind, variable) for kind, variable in zip(kinds, variables, strict=True)]


def zero_if_empty(
    empty: tf.Tensor, gradients: Sequence[Any], variables: Sequence[Any]
) -> list[Any]:
    """The gradients, or zeros if a rank has no examples: its gradients may be NaN."""

    def unless_empty(tensor: tf.Tensor) -> tf.Tensor:
        return tf.where(empty, tf.zeros_like(tensor), tensor)

    cleared = []
    for gradient, variable in zip(gradients, variables, strict=True):
        if isinstance(gradient, tf.IndexedSlices):
            kept = unless_empty(gradient.values)
            cleared.append(tf.IndexedSlices(kept, gradient.indices, gradient.dense_shape))
        elif gradient is None:
            cleared.append(None)
        else:
            cleared.append(unless_empty(tf.ensure_shape(gradient, variable.shape)))
    return cleared


def add(first: Any, second: Any) -> Any:
    """The sum of two gradients of one variable; either may be None."""
    if first is None or second is None:
        return second if first is None else first
    return tf.convert_to_tensor(first) + tf.convert_to_tensor(second)


def all_reduce(
    data: collectives.Communicator,
    gradients: Sequence[Any],
    kinds: Sequence[Kind],
    variables: Sequence[Any],
    also: Sequence[tf.Tensor],
    shares: lookups.Shares | None = None,
) -> list[Any]:
    """Add up gradients over the ranks of `data`, and further tensors of static shapes.

    With `shares`, rows that the examples name travel with the sums, where each names as many.
    """
    if data.size == 1:
        return [*gradients, *also]
    slices, dense = {}, {}
    for index, (gradient, kind) in enumerate(zip(gradients, kinds, strict=True)):
        if kind.form is Form.DENSE:
            dense[index] = tf.ensure_shape(gradient, variables[index].shape)
        elif kind.exchange is Exchange.TABLE:
            dense[index] = _table(gradient, variables[index])
        elif kind.form is Form.SPARSE:
            slices[index] = lookups.add([lookups.divide(gradient, kind.sources)])
    repeated, blocks = [], []
    for part in (part for parts in slices.values() for part in parts):
        if part.lookup.rows:
            repeated.append(part.values)
        elif shares and part.lookup.rows_per_example is not None:
            blocks += lookups.pad(part, shares, data.index)
    sums, stacks = data.sum_and_gather([*dense.values(), *repeated, *also], blocks)
    lookup_sums, row_stacks = iter(sums[len(dense) :]), iter(stacks)
    totals: list[Any] = [None] * len(gradients)
    for index, total in zip(dense, sums, strict=False):
        totals[index] = total

    def join(part: lookups.Slices, exchange: Exchange) -> lookups.Slices:
        if part.lookup.rows:
            return part.with_values(next(lookup_sums))
        if shares and part.lookup.rows_per_example is not None:
            return lookups.unpad(part, shares, next(row_stacks), next(row_stacks))
        return lookups.gather(data, part, adds_mentions=exchange is Exchange.ROWS)

    for index, parts in slices.items():
        joined = [join(part, kinds[index].exchange) for part in parts]
        totals[index] = lookups.join(joined, gradients[index].dense_shape)
    return [*totals, *lookup_sums]


def are_finite(optimizer: Any, loss: tf.Tensor, gradients: Sequence[Any]) -> tf.Tensor:
    """Whether the loss and the gradients, both over all ranks, are finite: a scalar bool.

    With loss scaling gradients do not count: the scale is the largest that overflows rarely, and
    its optimizer leaves such a step out by itself.
    """
    looked_at = [loss]
    if not isinstance(optimizer, keras.optimizers.LossScaleOptimizer):
        looked_at += [values(gradient) for gradient in gradients if gradient is not None]
    return all_finite(looked_at)


def all_finite(tensors: Sequence[tf.Tensor]) -> tf.Tensor:
    """Whether all floats of some tensors are finite: a scalar bool."""
    looked_at = []
    small: dict[tf.DType, list[tf.Tensor]] = {}
    for tensor in (tensor for tensor in tensors if tensor.dtype.is_floating):
        if packed_updates.is_small(tensor):
            small.setdefault(tensor.dtype, []).append(tensor)
        else:
            looked_at.append(tensor)
    looked_at += map(packed_updates.join, small.values())
    return tf.reduce_all(tf.stack([tf.reduce_all(tf.math.is_finite(t)) for t in looked_at]))


def values(gradient: Any) -> tf.Tensor:
    """The values of a gradient, without the rows that they belong to."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _table(gradient: tf.IndexedSlices, variable: Any) -> tf.Tensor:
    rows = tf.math.unsorted_segment_sum(gradient.values, gradient.indices, variable.shape[0])
    return tf.ensure_shape(rows, variable.shape)


def _zero(kind: Kind, variable: Any) -> Any:
    if kind.form is Form.ABSENT:
        return None
    if kind.form is Form.DENSE:
        return tf.zeros(variable.shape, variable.dtype)
    rows = [row for lookup in kind.sources for row in lookup.rows or ()]
    return tf.IndexedSlices(
        tf.zeros((len(rows), *variable.shape[1:]), variable.dtype),
        tf.constant(rows, tf.int64, (len(rows),)),
        tf.constant(list(variable.shape), tf.int64),
    )
