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
    """Give a rank the rows that it wants.

    Args:
        group: the ranks that the rows are divided over; each calls this with the same plan.
        tensor: the rank's own rows: [examples, rows, …], of static shape.
    """
    if plan.owned == plan.needed:
        return tf.identity(tensor)

    @tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
    def function(shard: tf.Tensor) -> Any:
        return _brought(group, shard, plan), lambda gradient: _returned(group, gradient, plan)

    return function(tensor)


def part(tensor: tf.Tensor, span: rows.Span, of: rows.Span) -> tf.Tensor:
    """Some of the rows that a tensor holds.

    Args:
        tensor: [examples, rows, …].
        span: which rows of the whole image.
        of: those that the tensor holds.
    """
    return tensor[:, span.within(of)]


def _brought(group: collectives.Communicator, shard: tf.Tensor, plan: rows.Exchange) -> tf.Tensor:
    has, wants = plan.owned[group.index], plan.needed[group.index]
    messages = plan.messages()
    outgoing = [
        part(shard, message.span, has) for message in messages if message.source == group.index
    ]
    taken, sent = _deliver(group, messages, outgoing, shard)
    pieces = {message.source: piece for message, piece in taken}
    kept = has.overlap(wants)
    if kept.size:
        pieces[group.index] = part(shard, kept, has)
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([shard.shape[0], 0, *shard.shape[2:]], shard.dtype)
        return tf.concat([pieces[source] for source in sorted(pieces)], _DIMENSION)


def _returned(
    group: collectives.Communicator, gradient: tf.Tensor, plan: rows.Exchange
) -> tf.Tensor:
    has, wants = plan.owned[group.index], plan.needed[group.index]
    messages = [
        rows.Message(message.target, message.source, message.span) for message in plan.messages()
    ]
    outgoing = [
        part(gradient, message.span, wants) for message in messages if message.source == group.index
    ]
    taken, sent = _deliver(group, messages, outgoing, gradient)
    pieces = [_among(piece, message.span, has) for message, piece in taken]
    kept = has.overlap(wants)
    if kept.size:
        pieces.append(_among(part(gradient, kept, wants), kept, has))
    with tf.control_dependencies(sent):
        if not pieces:
            return tf.zeros([gradient.shape[0], has.size, *gradient.shape[2:]], gradient.dtype)
        return tf.identity(tf.add_n(pieces))  # add_n of one tensor is no operation


def _deliver(
    group: collectives.Communicator,
    messages: Sequence[rows.Message],
    outgoing: list[tf.Tensor],
    like: tf.Tensor,
) -> tuple[list[tuple[rows.Message, tf.Tensor]], list[tf.Operation]]:
    """Send a rank's messages; gives those that it takes, and what must run."""
    dtype = tf.as_dtype(traffic.carried(like.dtype.name))
    sending = [place for place, one in enumerate(messages) if one.source == group.index]
    taking = [place for place, one in enumerate(messages) if one.target == group.index]
    shapes = {
        place: [like.shape[0], messages[place].span.size, *like.shape[2:]] for place in taking
    }
    taken, sent = group.deliver(
        [(one.source, one.target) for one in messages],
        {place: tf.cast(one, dtype) for place, one in zip(sending, outgoing, strict=True)},
        shapes,
        dtype,
    )
    incoming = [
        (messages[place], tf.cast(tf.ensure_shape(taken[place], shapes[place]), like.dtype))
        for place in taking
    ]
    return incoming, sent


def _among(piece: tf.Tensor, span: rows.Span, of: rows.Span) -> tf.Tensor:
    """Put rows at their place among the rows of a rank; the others are zeros."""
    pads = [[0, 0] for _ in piece.shape]
    pads[_DIMENSION] = [span.start - of.start, of.stop - span.stop]
    return tf.pad(piece, pads)
