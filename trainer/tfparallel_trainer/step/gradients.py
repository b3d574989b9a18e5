"""Adds gradients up over ranks without changing their kind.

A sparse gradient (tf.IndexedSlices, from an embedding) names some rows several times, and Keras
optimizers do not treat it as the dense gradient of the same sum: Adam squares each mention of a row
by itself, and clipping takes the norm over mentions. So the mentions of all ranks are gathered, in
the order of the examples: exactly what one process with the whole batch would have. That also
costs the rows that were touched, not the whole table.
"""

import enum
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.mesh import collectives


class Kind(enum.Enum):
    """What the tape gives for a variable; the same on every rank that has examples."""

    ABSENT = "absent"
    """The loss does not depend on the variable."""
    DENSE = "dense"
    SPARSE = "sparse"


def kinds(gradients: Sequence[Any]) -> list[Kind]:
    """Tell of what kind each gradient is."""
    return [_kind(gradient) for gradient in gradients]


def zeros(found: Sequence[Kind], variables: Sequence[Any]) -> list[Any]:
    """What a rank without examples adds: gradients of these kinds that are nothing."""
    return [_zero(kind, variable) for kind, variable in zip(found, variables, strict=True)]


def nothing_if(empty: tf.Tensor, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """The gradients, or zeros where a rank computed them from no examples.

    A mean over no examples is NaN, and so may be a gradient that goes through it.
    """
    return [
        tf.where(empty, tf.zeros(variable.shape, gradient.dtype), gradient)
        if _kind(gradient) is Kind.DENSE
        else gradient  # slices of no examples are no slices
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def add_up(
    data: collectives.Communicator,
    gradients: Sequence[Any],
    variables: Sequence[Any],
    also: Sequence[tf.Tensor],
) -> list[Any]:
    """Add gradients up over the ranks of `data`, and other tensors along with them.

    Args:
        data: the ranks that a batch is divided over.
        gradients: this rank's; the same kinds on every rank.
        variables: what they are gradients of.
        also: tensors of static shapes.

    Returns:
        The sums, each of its gradient's kind, then those of `also`.
    """
    found = kinds(gradients)
    dense = [
        tf.ensure_shape(gradient, variable.shape)
        for gradient, variable in zip(gradients, variables, strict=True)
        if _kind(gradient) is Kind.DENSE
    ]
    sums = data.sum_all([*dense, *also])
    slices = [gradient for gradient in gradients if _kind(gradient) is Kind.SPARSE]
    results = {Kind.DENSE: iter(sums), Kind.SPARSE: iter(_gather(data, slices))}
    totals = [next(results[kind]) if kind in results else None for kind in found]
    return [*totals, *sums[len(dense) :]]


def _kind(gradient: Any) -> Kind:
    if gradient is None:
        return Kind.ABSENT
    return Kind.SPARSE if isinstance(gradient, tf.IndexedSlices) else Kind.DENSE


def _zero(kind: Kind, variable: Any) -> Any:
    if kind is Kind.ABSENT:
        return None
    if kind is Kind.DENSE:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.IndexedSlices(
        tf.zeros((0, *variable.shape[1:]), variable.dtype),
        tf.zeros((0,), tf.int64),
        tf.constant(list(variable.shape), tf.int64),
    )


def _gather(data: collectives.Communicator, slices: Sequence[Any]) -> list[Any]:
    """Join the slices of all ranks; ranks may have different numbers of them."""
    joined = []
    for one in slices:
        indices, values = data.gather_rows([tf.cast(one.indices, tf.int64), one.values])
        joined.append(tf.IndexedSlices(values, indices, one.dense_shape))
    return joined
