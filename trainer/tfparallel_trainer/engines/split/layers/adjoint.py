"""Collective operations within a layer's group, with their gradients.

Invariant: the gradient of a replicated tensor is replicated, and that of a sharded tensor is
sharded likewise. So the adjoint of slicing is an all-gather, and conversely. The functions
correspond to the mappings of Megatron-LM.
"""

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.layers import communication, layout, row_division

Group = Mapping[shape.Axis, collectives.Communicator]
"""The communicators of one rank, by the axis that splits layers."""

_Function = Callable[[tf.Tensor], tf.Tensor]

_ROWS = 1
"""The dimension of an image's rows; dimension 0 is the examples."""


def copy_to_group(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Identity of a replicated tensor; the backward pass sums the gradients of all ranks."""
    return _with_gradient(tf.identity, group.sum, tensor)


def reduce_from_group(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Sum partial results over the group; the backward pass is the identity."""
    return _with_gradient(group.sum, tf.identity, tensor)


def all_reduce(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Sum over the group in both passes, because each rank uses the sum for its own shard."""
    return _with_gradient(group.sum, group.sum, tensor)


def gather(
    group: collectives.Communicator, tensor: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    """All-gather a sharded dimension; the backward pass slices the gradient."""
    return _with_gradient(
        lambda shard: _gather_shards(group, shard, dimension, cut),
        lambda full: _shard_of(group, full, dimension, cut),
        tensor,
    )


def slice_to_group(
    group: collectives.Communicator, tensor: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    """Slice this rank's shard of a replicated tensor; the backward pass gathers the gradients."""
    return _with_gradient(
        lambda full: _shard_of(group, full, dimension, cut),
        lambda shard: _gather_shards(group, shard, dimension, cut),
        tensor,
    )


def all_to_all(
    group: collectives.Communicator,
    tensor: tf.Tensor,
    before: tuple[int, layout.Cut],
    after: tuple[int, layout.Cut],
) -> tf.Tensor:
    """Shard another dimension than before, by one all-to-all in each pass."""
    return _with_gradient(
        lambda shard: _exchanged(group, shard, before, after),
        lambda shard: _exchanged(group, shard, after, before),
        tensor,
    )


def reshard(tensor: Any, before: layout.Layout, after: layout.Layout, groups: Group) -> Any:
    """Convert a rank's shard, which may be None, from one layout into another."""
    if tensor is None or before == after:
        return tensor
    tensor = tf.convert_to_tensor(tensor)
    for change in layout.changes(before, after):
        group = groups[change.axis]
        if change.before and change.after:
            tensor = all_to_all(group, tensor, change.before, change.after)
        elif change.before:
            tensor = gather(group, tensor, *change.before)
        elif change.after:
            tensor = slice_to_group(group, tensor, *change.after)
    return tensor


def exchange_halos(
    group: collectives.Communicator, tensor: tf.Tensor, plan: row_division.RowPlan
) -> tf.Tensor:
    """Receive the halo, the rows of other ranks that a rank needs: [examples, rows, …], static.

    The backward pass returns the gradient of each row to the rank that owns it, and sums there.
    All ranks of the group call this with the same plan.
    """
    if plan.owned == plan.needed:
        return tf.identity(tensor)
    return _with_gradient(
        lambda shard: _with_halo(group, shard, plan),
        lambda gradient: _without_halo(group, gradient, plan),
        tensor,
    )


def join_gradients(tensors: list[Any]) -> list[Any]:
    """Make the gradients of several tensors enter the backward pass through one operation.

    With several operations, TensorFlow's tape may begin with any of them, and with another one in
    each process. Then ranks would communicate in different orders.
    """
    return list(tf.identity_n(tensors)) if tensors else []


def _with_gradient(forward: _Function, backward: _Function, tensor: tf.Tensor) -> tf.Tensor:
    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def function(value: tf.Tensor) -> Any:
        return forward(value), backward

    return function(tensor)


def _shard_of(
    group: collectives.Communicator, full: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    rows = [slice(None)] * dimension
    return full[(*rows, cut.rows(group.index))]


def _gather_shards(
    group: collectives.Communicator, shard: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    carried = tf.cast(shard, communication.carried(shard.dtype.name))
    stacked = tf.cast(group.gather(_padded(carried, dimension, cut, group.index)), shard.dtype)
    parts = tf.unstack(stacked, group.size)
    return tf.concat(
        [_rows(part, dimension, size) for part, size in zip(parts, cut.sizes, strict=True)],
        dimension,
    )


def _exchanged(
    group: collectives.Communicator,
    shard: tf.Tensor,
    before: tuple[int, layout.Cut],
    after: tuple[int, layout.Cut],
) -> tf.Tensor:
    (old_dimension, old), (new_dimension, new) = before, after
    carried = tf.cast(shard, communication.carried(shard.dtype.name))
    parts = tf.split(carried, new.sizes, new_dimension)
    if group.has_fast_pairs and parts[group.index].shape.is_fully_defined():
        rows = _exchanged_in_pairs(group, parts, old_dimension, old)
    else:
        outgoing = [
            _padded(_padded(part, old_dimension, old, group.index), new_dimension, new, index)
            for index, part in enumerate(parts)
        ]
        received = tf.unstack(group.all_to_all(tf.stack(outgoing)), group.size)
        rows = [
            _rows(_rows(part, old_dimension, size), new_dimension, new.sizes[group.index])
            for part, size in zip(received, old.sizes, strict=True)
        ]
    return tf.cast(tf.concat(rows, old_dimension), shard.dtype)


def _exchanged_in_pairs(
    group: collectives.Communicator, parts: Sequence[tf.Tensor], dimension: int, cut: layout.Cut
) -> list[tf.Tensor]:
    """Send each rank its part, and return those from all ranks, in their order."""
    kept = parts[group.index]
    routes = list(itertools.permutations(range(group.size), 2))
    outgoing, shapes = {}, {}
    for index, (source, target) in enumerate(routes):
        if source == group.index:
            outgoing[index] = parts[target]
        elif target == group.index:
            shapes[index] = [*kept.shape]
            shapes[index][dimension] = cut.sizes[source]
    received, sent = group.send_receive(routes, outgoing, shapes, kept.dtype)
    rows = {routes[index][0]: part for index, part in received.items()}
    with tf.control_dependencies(sent):
        rows[group.index] = tf.identity(kept)
    return [rows[source] for source in range(group.size)]


def _padded(tensor: tf.Tensor, dimension: int, cut: layout.Cut, index: int) -> tf.Tensor:
    """Pad each rank's shard to one shape, as collective operations require."""
    missing = max(cut.sizes) - cut.sizes[index]
    return _surrounded(tensor, dimension, 0, missing) if missing else tensor


def _surrounded(tensor: tf.Tensor, dimension: int, before: int, after: int) -> tf.Tensor:
    """Add rows of zeros in a dimension."""
    pads = [[0, 0] for _ in tensor.shape]
    pads[dimension] = [before, after]
    return tf.pad(tensor, pads)


def _rows(tensor: tf.Tensor, dimension: int, size: int) -> tf.Tensor:
    if tensor.shape[dimension] == size:
        return tensor
    return tensor[(*[slice(None)] * dimension, slice(size))]


def _with_halo(
    group: collectives.Communicator, shard: tf.Tensor, plan: row_division.RowPlan
) -> tf.Tensor:
    has, wants = plan.owned[group.index], plan.needed[group.index]
    pieces, sent = _delivered(group, shard, plan.messages(), has, wants)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([shard.shape[0], 0, *shard.shape[2:]], shard.dtype)
        in_order = sorted(pieces, key=lambda pair: pair[0].start)
        return tf.concat([piece for _, piece in in_order], _ROWS)


def _without_halo(
    group: collectives.Communicator, gradient: tf.Tensor, plan: row_division.RowPlan
) -> tf.Tensor:
    has, wants = plan.needed[group.index], plan.owned[group.index]
    back = [
        row_division.RowTransfer(message.target, message.source, message.span)
        for message in plan.messages()
    ]
    pieces, sent = _delivered(group, gradient, back, has, wants)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([gradient.shape[0], len(wants), *gradient.shape[2:]], gradient.dtype)
        padded = [
            _surrounded(piece, _ROWS, span.start - wants.start, wants.stop - span.stop)
            for span, piece in pieces
        ]
        return tf.identity(tf.add_n(padded))  # add_n of one tensor creates no operation


def _delivered(
    group: collectives.Communicator,
    tensor: tf.Tensor,
    messages: Sequence[row_division.RowTransfer],
    has: range,
    wants: range,
) -> tuple[list[tuple[range, tf.Tensor]], list[tf.Operation]]:
    """Return the rows that a rank receives or already owns, and the operations that must run."""
    dtype = tf.as_dtype(communication.carried(tensor.dtype.name))
    outgoing = {
        index: tf.cast(_part(tensor, message.span, has), dtype)
        for index, message in enumerate(messages)
        if message.source == group.index
    }
    shapes = {
        index: [tensor.shape[0], len(message.span), *tensor.shape[2:]]
        for index, message in enumerate(messages)
        if message.target == group.index
    }
    routes = [(message.source, message.target) for message in messages]
    received, sent = group.send_receive(routes, outgoing, shapes, dtype)
    pieces = [
        (messages[index].span, tf.cast(tf.ensure_shape(received[index], dims), tensor.dtype))
        for index, dims in shapes.items()
    ]
    if kept := row_division.overlap(has, wants):
        pieces.append((kept, _part(tensor, kept, has)))
    return pieces, sent


def _part(tensor: tf.Tensor, span: range, of: range) -> tf.Tensor:
    """Slice rows of the full image from a tensor [examples, rows, …] that has the rows `of`."""
    return tensor[:, span.start - of.start : span.stop - of.start]
