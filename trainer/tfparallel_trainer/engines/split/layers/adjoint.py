"""Communication within a layer's group, with its gradients.

One rule holds throughout: of a whole tensor every rank has the whole gradient, of a cut one the
gradient of its part. So what makes cut things of a whole one adds their gradients up, and what
makes a whole thing of cut ones hands each rank its own part of the gradient.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.layers import communication, layout, row_division

Group = Mapping[shape.Axis, collectives.Communicator]
"""A rank's ends of the groups that it splits layers with."""

_Function = Callable[[tf.Tensor], tf.Tensor]

_ROWS = 1
"""The dimension of an image's rows; before it are the examples."""


def spread(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Use a whole tensor on every rank for something else: identity; gradients are added up."""
    return _with_gradient(tf.identity, group.sum, tensor)


def total(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Add up what each rank has computed a part of; each has the gradient of the sum."""
    return _with_gradient(group.sum, tf.identity, tensor)


def add_up(group: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
    """Add up what each rank uses for a part of the result: gradients are added up as well."""
    return _with_gradient(group.sum, group.sum, tensor)


def gather(
    group: collectives.Communicator, tensor: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    """Make a tensor that is cut in a dimension whole; its gradient is the own part."""
    return _with_gradient(
        lambda shard: _joined(group, shard, dimension, cut),
        lambda full: _shard_of(group, full, dimension, cut),
        tensor,
    )


def take(
    group: collectives.Communicator, tensor: tf.Tensor, dimension: int, cut: layout.Cut
) -> tf.Tensor:
    """Keep the own part of a whole tensor; the gradients of all parts are gathered."""
    return _with_gradient(
        lambda full: _shard_of(group, full, dimension, cut),
        lambda shard: _joined(group, shard, dimension, cut),
        tensor,
    )


def exchange(
    group: collectives.Communicator,
    tensor: tf.Tensor,
    before: tuple[int, layout.Cut],
    after: tuple[int, layout.Cut],
) -> tf.Tensor:
    """Let a tensor that is cut in one dimension be cut in another one."""
    return _with_gradient(
        lambda shard: _exchanged(group, shard, before, after),
        lambda shard: _exchanged(group, shard, after, before),
        tensor,
    )


def reshard(tensor: Any, before: layout.Layout, after: layout.Layout, groups: Group) -> Any:
    """Bring a rank's part of a tensor, which may be None, from one layout into another."""
    if tensor is None or before == after:
        return tensor
    tensor = tf.convert_to_tensor(tensor)
    for change in layout.changes(before, after):
        group = groups[change.axis]
        if change.before and change.after:
            tensor = exchange(group, tensor, change.before, change.after)
        elif change.before:
            tensor = gather(group, tensor, *change.before)
        elif change.after:
            tensor = take(group, tensor, *change.after)
    return tensor


def exchange_rows(
    group: collectives.Communicator, tensor: tf.Tensor, plan: row_division.Plan
) -> tf.Tensor:
    """Give a rank the rows that it needs, from its own: [examples, rows, …], of static shape.

    Those besides its own lie in other ranks' shards (its halo). The gradient of a row goes back to
    who gave it, and is added up. All ranks of the group call this with the same plan.
    """
    if plan.owned == plan.needed:
        return tf.identity(tensor)
    return _with_gradient(
        lambda shard: _with_halo(group, shard, plan),
        lambda gradient: _without_halo(group, gradient, plan),
        tensor,
    )


def one_end(tensors: list[Any]) -> list[Any]:
    """Let the gradients of several tensors come in through one operation.

    Where they come in through several, TensorFlow's tape begins with any of them, and not with the
    same one in every process. Then ranks would communicate in different orders.
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


def _joined(
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
    parts = tf.split(_padded(carried, old_dimension, old, group.index), new.sizes, new_dimension)
    outgoing = [_padded(part, new_dimension, new, place) for place, part in enumerate(parts)]
    taken = tf.unstack(group.exchange(tf.stack(outgoing)), group.size)
    rows = [_rows(part, old_dimension, size) for part, size in zip(taken, old.sizes, strict=True)]
    return tf.cast(
        _rows(tf.concat(rows, old_dimension), new_dimension, new.sizes[group.index]), shard.dtype
    )


def _padded(tensor: tf.Tensor, dimension: int, cut: layout.Cut, index: int) -> tf.Tensor:
    """Give each rank's part the same shape, as collective operations want."""
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
    group: collectives.Communicator, shard: tf.Tensor, plan: row_division.Plan
) -> tf.Tensor:
    has, wants = plan.owned[group.index], plan.needed[group.index]
    pieces, sent = _delivered(group, shard, plan.messages(), has, wants)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([shard.shape[0], 0, *shard.shape[2:]], shard.dtype)
        in_order = sorted(pieces, key=lambda pair: pair[0].start)
        return tf.concat([piece for _, piece in in_order], _ROWS)


def _without_halo(
    group: collectives.Communicator, gradient: tf.Tensor, plan: row_division.Plan
) -> tf.Tensor:
    has, wants = plan.needed[group.index], plan.owned[group.index]
    back = [row_division.Message(one.target, one.source, one.span) for one in plan.messages()]
    pieces, sent = _delivered(group, gradient, back, has, wants)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([gradient.shape[0], len(wants), *gradient.shape[2:]], gradient.dtype)
        padded = [
            _surrounded(piece, _ROWS, span.start - wants.start, wants.stop - span.stop)
            for span, piece in pieces
        ]
        return tf.identity(tf.add_n(padded))  # add_n of one tensor is no operation


def _delivered(
    group: collectives.Communicator,
    tensor: tf.Tensor,
    messages: Sequence[row_division.Message],
    has: range,
    wants: range,
) -> tuple[list[tuple[range, tf.Tensor]], list[tf.Operation]]:
    """What a rank gets and keeps of the rows that it wants; and what must run."""
    dtype = tf.as_dtype(communication.carried(tensor.dtype.name))
    outgoing = {
        place: tf.cast(_part(tensor, one.span, has), dtype)
        for place, one in enumerate(messages)
        if one.source == group.index
    }
    shapes = {
        place: [tensor.shape[0], len(one.span), *tensor.shape[2:]]
        for place, one in enumerate(messages)
        if one.target == group.index
    }
    routes = [(one.source, one.target) for one in messages]
    taken, sent = group.deliver(routes, outgoing, shapes, dtype)
    pieces = [
        (messages[place].span, tf.cast(tf.ensure_shape(taken[place], dims), tensor.dtype))
        for place, dims in shapes.items()
    ]
    if kept := row_division.overlap(has, wants):
        pieces.append((kept, _part(tensor, kept, has)))
    return pieces, sent


def _part(tensor: tf.Tensor, span: range, of: range) -> tf.Tensor:
    """Some rows of the whole image, from [examples, rows, …] that holds those `of` it."""
    return tensor[:, span.start - of.start : span.stop - of.start]
