"""Normalisations of images whose rows are divided: statistics are those of all rows."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.engines.split.layers import adjoint, layout
from tfparallel_trainer.engines.split.layers.rules import dense, registry, space
from tfparallel_trainer.engines.split.pipeline import schedule


class Batch(space.Passing):
    """BatchNormalization over the rows of all ranks; channels stay as they come."""

    def split(self, call: registry.Call) -> registry.Split:
        """Keep rows and channels divided as they come."""
        layer, dims = call.layer, call.dimensions(call.first)
        dense.check(layer)
        if call.node.masks or layer.renorm or layer.axis not in (-1, len(dims) - 1):
            raise registry.CannotSplitError(
                "it has a mask, renorm, or an axis that is not the last: do without, or replicate "
                "the layer"
            )
        lies = space.as_it_comes(call)
        channels = lies.cuts[-1]
        summed = frozenset() if space.cut_of_rows(lies) is None else space.SUMMED
        variables = (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance)
        moments = lies.largest(dims)[-1:]
        both = [schedule.Work.FORWARD, schedule.Work.BACKWARD] * 2
        return registry.Split(
            wants={call.first: lies},
            gives={call.result: lies},
            variables={
                call.key(one): registry.Shard(
                    layout.Layout((channels,)), summed if one.trainable else frozenset()
                )
                for one in variables
                if one is not None
            },
            costs=space.summing(call, moments, _exact(layer), both) if summed else (),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Normalise the rank's rows."""
        layer = local.layer
        values = keras.ops.cast(local.first, _exact(layer))
        moving = (layer.moving_mean, layer.moving_variance)
        mean, variance = (keras.ops.cast(local.value(one), values.dtype) for one in moving)
        if local.training and layer.trainable:
            old = (mean, variance)
            mean, variance = _moments(
                local, values, list(range(values.shape.rank - 1)), layer.synchronized
            )
            for variable, then, now in zip(moving, old, (mean, variance), strict=True):
                new = then * layer.momentum + tf.stop_gradient(now) * (1.0 - layer.momentum)
                local.changed[local.key(variable)] = keras.ops.cast(new, variable.dtype)
        normalised = keras.ops.batch_normalization(
            x=values,
            mean=mean,
            variance=variance,
            axis=-1,
            offset=_weight(local, layer.beta, values.dtype),
            scale=_weight(local, layer.gamma, values.dtype),
            epsilon=layer.epsilon,
        )
        return [keras.ops.cast(normalised, layer.compute_dtype)]


class Groups(registry.Rule):
    """GroupNormalization over the rows of all ranks."""

    way = "rows"
    axes = (space.AXIS,)

    def split(self, call: registry.Call) -> registry.Split:
        """Keep rows divided as they come."""
        layer, dims = call.layer, call.dimensions(call.first)
        dense.check(layer)
        space.check(call)
        if layer.axis not in (-1, len(dims) - 1):
            raise registry.CannotSplitError(
                f"its axis is {layer.axis}: give -1, or replicate the layer"
            )
        lies = space.as_it_comes(call, channels=False)
        both = [schedule.Work.FORWARD, schedule.Work.BACKWARD] * 2
        return registry.Split(
            wants={call.first: lies},
            gives={call.result: lies},
            variables=_unsharded(call, layer.gamma, layer.beta),
            costs=space.summing(call, (dims[0], layer.groups), _exact(layer), both),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Normalise the rank's rows."""
        layer = local.layer
        values = keras.ops.cast(local.first, _exact(layer))
        channels = values.shape[-1]
        groups = [*values.shape[:-1], layer.groups, channels // layer.groups]
        grouped = tf.reshape(values, groups)
        reduced = [*range(1, len(groups) - 2), len(groups) - 1]
        mean, variance = _moments(local, grouped, reduced)
        normalised = tf.reshape(_normal(grouped, mean, variance, layer.epsilon), values.shape)
        return [_scaled(local, normalised, [1] * (values.shape.rank - 1) + [channels])]


RULES: dict[type, tuple[registry.Rule, ...]] = {
    keras.layers.BatchNormalization: tuple(Batch(axis) for axis in layout.AXES),
    keras.layers.GroupNormalization: (Groups(),),
}


def _moments(
    local: registry.Local, values: tf.Tensor, axes: Sequence[int], synchronized: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over axes and ranks, of which the ranks' rows are one.

    They take two sums, because the mean of squares would lose small variances.
    """
    cut = space.cut_of_rows(local.split.wants[local.node.inputs[0]])
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(values), axes)), values.dtype)
    group = local.groups[space.AXIS]
    times = 1.0 if cut is None else cut.size / cut.sizes[group.index]

    def add_up(tensor: tf.Tensor) -> tf.Tensor:
        total = tensor if cut is None else adjoint.add_up(group, tensor)
        if not synchronized:
            return total
        context = tf.distribute.get_replica_context()
        return context.all_reduce(tf.distribute.ReduceOp.SUM, total)

    places = count * times
    if synchronized:  # over the data axis, as Keras does it
        places = tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, places)
    keeps = 0 not in axes
    mean = add_up(tf.reduce_sum(values, axes, keepdims=keeps)) / places
    squares = tf.math.squared_difference(values, tf.stop_gradient(mean))
    return mean, add_up(tf.reduce_sum(squares, axes, keepdims=keeps)) / places


def _normal(values: tf.Tensor, mean: Any, variance: Any, epsilon: float) -> tf.Tensor:
    return (values - mean) * tf.math.rsqrt(variance + epsilon)


def _scaled(local: registry.Local, normalised: tf.Tensor, dims: Sequence[int]) -> Any:
    """Apply the weights gamma and beta, brought into a shape, and give the layer's type."""
    layer = local.layer
    gamma, beta = (_weight(local, one, normalised.dtype) for one in (layer.gamma, layer.beta))
    if gamma is not None:
        normalised = normalised * tf.reshape(gamma, dims)
    if beta is not None:
        normalised = normalised + tf.reshape(beta, dims)
    return keras.ops.cast(normalised, layer.compute_dtype)


def _weight(local: registry.Local, variable: Any, dtype: Any) -> Any:
    """A rank's part of a weight that a layer may be without."""
    return None if variable is None else keras.ops.cast(local.value(variable), dtype)


def _unsharded(call: registry.Call, *weights: Any) -> dict[str, registry.Shard]:
    return {
        call.key(one): registry.Shard(layout.whole(len(one.shape)), space.SUMMED)
        for one in weights
        if one is not None
    }


def _exact(layer: Any) -> str:
    """The type in which statistics are computed: at least float32."""
    return str(keras.backend.result_type(layer.compute_dtype, "float32"))
