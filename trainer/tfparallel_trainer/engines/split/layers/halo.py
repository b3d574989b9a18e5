"""Rows that change hands between ranks, with their gradients.

A rank gets the rows that it needs besides its own, which lie in other ranks' shards (its halo). The
gradient of a row goes back to who gave the row, and is added to the others of that row.
"""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.engines.split.layers import rows, traffic

_DIMENSION = 1
"""That of the rows; before it are the examples."""


def exchange(group: collectives.Communicator, tensor: tf.Tensor, plan: rows.Exchange) -> tf.Tensor:
    """Give a rank the rows that it wants, from its own: [examples, rows, …], of static shape.

    All ranks of the group call this with the same plan.
    """
    if plan.owned == plan.needed:
        return tf.identity(tensor)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def function(shard: tf.Tensor) -> Any:
        return _brought(group, shard, plan), lambda gradient: _returned(group, gradient, plan)

    return function(tensor)


def part(tensor: tf.Tensor, span: rows.Span, of: rows.Span) -> tf.Tensor:
    """A span of the rows of the whole image, from [examples, rows, …] that holds those `of` it."""
    return tensor[:, span.within(of)]


def _brought(group: collectives.Communicator, shard: tf.Tensor, plan: rows.Exchange) -> tf.Tensor:
    spans = plan.owned[group.index], plan.needed[group.index]
    pieces, sent = _moved(group, shard, plan.messages(), *spans)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([shard.shape[0], 0, *shard.shape[2:]], shard.dtype)
        in_order = sorted(pieces, key=lambda pair: pair[0].start)
        return tf.concat([piece for _, piece in in_order], _DIMENSION)


def _returned(
    group: collectives.Communicator, gradient: tf.Tensor, plan: rows.Exchange
) -> tf.Tensor:
    has, wants = plan.needed[group.index], plan.owned[group.index]
    back = [rows.Message(one.target, one.source, one.span) for one in plan.messages()]
    pieces, sent = _moved(group, gradient, back, has, wants)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([gradient.shape[0], wants.size, *gradient.shape[2:]], gradient.dtype)
        padded = [_among(piece, span, wants) for span, piece in pieces]
        return tf.identity(tf.add_n(padded))  # add_n of one tensor is no operation


def _moved(
    group: collectives.Communicator,
    tensor: tf.Tensor,
    messages: Sequence[rows.Message],
    has: rows.Span,
    wants: rows.Span,
) -> tuple[list[tuple[rows.Span, tf.Tensor]], list[tf.Operation]]:
    """What a rank gets and keeps of the rows that it wants; and what must run."""
    dtype = tf.as_dtype(traffic.carried(tensor.dtype.name))
    outgoing = {
        place: tf.cast(part(tensor, one.span, has), dtype)
        for place, one in enumerate(messages)
        if one.source == group.index
    }
    shapes = {
        place: [tensor.shape[0], one.span.size, *tensor.shape[2:]]
        for place, one in enumerate(messages)
        if one.target == group.index
    }
    routes = [(one.source, one.target) for one in messages]
    taken, sent = group.deliver(routes, outgoing, shapes, dtype)
    pieces = [
        (messages[place].span, tf.cast(tf.ensure_shape(taken[place], dims), tensor.dtype))
        for place, dims in shapes.items()
    ]
    kept = has.overlap(wants)
    if kept.size:
        pieces.append((kept, part(tensor, kept, has)))
    return pieces, sent


def _among(piece: tf.Tensor, span: rows.Span, of: rows.Span) -> tf.Tensor:
    """Put rows at their place among the rows of a rank; the others are zeros."""
    pads = [[0, 0] for _ in piece.shape]
    pads[_DIMENSION] = [span.start - of.start, of.stop - span.stop]
    return tf.pad(piece, pads)
