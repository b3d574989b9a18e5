"""Communication within a layer's group, with its gradients.

One rule holds throughout: of a whole tensor every rank has the whole gradient, of a cut one the
gradient of its part. So what makes cut things of a whole one adds their gradients up, and what
makes a whole thing of cut ones hands each rank its own part of the gradient.
"""

from collections.abc import Callable, Mapping
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.layers import layout, resharding, traffic

Group = Mapping[shape.Axis, collectives.Communicator]
"""A rank's ends of the groups that it splits layers with."""

_Function = Callable[[tf.Tensor], tf.Tensor]


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
    for change in resharding.changes(before, after):
        group = groups[change.axis]
        if change.before and change.after:
            tensor = exchange(group, tensor, change.before, change.after)
        elif change.before:
            tensor = gather(group, tensor, *change.before)
        elif change.after:
            tensor = take(group, tensor, *change.after)
    return tensor


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
    carried = tf.cast(shard, traffic.carried(shard.dtype.name))
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
    carried = tf.cast(shard, traffic.carried(shard.dtype.name))
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
    if not missing:
        return tensor
    pads = [[0, missing if place == dimension else 0] for place in range(tensor.shape.rank)]
    return tf.pad(tensor, pads)


def _rows(tensor: tf.Tensor, dimension: int, size: int) -> tf.Tensor:
    if tensor.shape[dimension] == size:
        return tensor
    return tensor[(*[slice(None)] * dimension, slice(size))]
