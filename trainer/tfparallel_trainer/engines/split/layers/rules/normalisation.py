"""Normalisations of sharded tensors, over the sharded dimension or over others.

If the sharded dimension is normalised, sums are over all ranks, and the weights are sharded too. If
another dimension is sharded, each rank normalises its part with full weights. Statistics over rows
that are divided are those of all rows.
"""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import dense, local_layers, registry, spatial
from tfparallel_trainer.engines.split.model import operations
from tfparallel_trainer.engines.split.pipeline import schedule


class LayerNormalizationRule(registry.Rule):
    """LayerNormalization and RMSNormalization of the part that each rank has."""

    sharding = "parts"

    def __init__(self, weights: Sequence[str], sums: int) -> None:
        self._weights = weights
        """The attributes of the layer that are weights."""
        self._sums = sums
        """Number of sums: of the squares, and before that perhaps of the values."""

    def split(self, call: registry.Call) -> registry.Split:
        layer, tensor_layout = call.layer, call.input_layouts[call.first]
        dense.check(layer)
        if tensor_layout.is_whole or getattr(layer, "rms_scaling", False):
            raise registry.CannotSplitError("its input is whole, or it has rms_scaling")
        reduced = operations.axes(layer.axis, len(tensor_layout.cuts))
        axes = _axes(tensor_layout, reduced)
        weight = layout.Layout(tuple(tensor_layout.cuts[index] for index in reduced))
        variables = call.shards(
            *((getattr(layer, name), weight) for name in self._weights),
            summed=tensor_layout.axes.difference(axes),
        )
        dims = [
            1 if index in reduced else size
            for index, size in enumerate(tensor_layout.largest(call.dimensions(call.first)))
        ]
        costs = (cost for axis in axes for cost in _costs(call, axis, dims, self._sums))
        return call.split(tensor_layout, tensor_layout, variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        tensor_layout = local.split.wants[local.node.inputs[0]]
        values = tf.cast(local.first, _exact(layer))
        reduced = operations.axes(layer.axis, values.shape.rank)
        full_dims = local.model.tensors[local.node.inputs[0]].shape
        count = math.prod(full_dims[index] or 1 for index in reduced)

        def mean(tensor: tf.Tensor) -> tf.Tensor:
            total = tf.reduce_sum(tensor, reduced, keepdims=True)
            for axis in _axes(tensor_layout, reduced):
                total = adjoint.all_reduce(local.groups[axis], total)
            return total / count

        if self._sums == 2:
            values = values - mean(values)
        normalised = values * tf.math.rsqrt(mean(tf.square(values)) + layer.epsilon)
        dims = [size if index in reduced else 1 for index, size in enumerate(values.shape)]
        return [_scaled(local, normalised, self._weights, dims)]


class GroupNormalizationRule(registry.Rule):
    """GroupNormalization of whole groups of channels on each rank."""

    sharding = "channels"

    def split(self, call: registry.Call) -> registry.Split:
        """Keep the cut of the channels if no border lies within a group."""
        layer, rank = call.layer, len(call.dimensions(call.first))
        dense.check(layer)
        position = layer.axis % rank
        cut = call.find_cut(call.first, position, shape.Axis.TENSOR)
        if cut is None:
            raise registry.CannotSplitError("its channels are whole")
        try:
            cut.coarsen(cut.size // layer.groups)
        except ValueError as error:
            raise registry.CannotSplitError(f"a group would be divided: {error}") from error
        tensor_layout, weight = layout.cut(rank, position, cut), layout.cut(1, 0, cut)
        return call.split(
            tensor_layout, tensor_layout, call.shards(*((one, weight) for one in layer.weights))
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        channels = local.model.tensors[local.node.inputs[0]].shape[layer.axis] or 1
        local_groups = local.first.shape[layer.axis] * layer.groups // channels
        return local_layers.smaller(local, {"groups": local_groups}, local.variables)


class BatchNormalizationRule(spatial.PerChannelRule):
    """BatchNormalization over the rows of all ranks; channels stay as they are."""

    def split(self, call: registry.Call) -> registry.Split:
        layer, dims = call.layer, call.dimensions(call.first)
        dense.check(layer)
        if call.node.masks or layer.renorm or layer.axis not in (-1, len(dims) - 1):
            raise registry.CannotSplitError(
                "it has a mask, renorm, or an axis that is not the last: do without, or replicate "
                "the layer"
            )
        tensor_layout = spatial.as_it_comes(call)
        channels = layout.Layout(tensor_layout.cuts[-1:])
        summed = tensor_layout.axes & spatial.SUMMED
        variables: dict[str, registry.Shard] = {}
        for variable in (layer.gamma, layer.beta, layer.moving_mean, layer.moving_variance):
            is_trained = variable is not None and variable.trainable
            variables |= call.shards(
                (variable, channels), summed=summed if is_trained else frozenset()
            )
        costs = _costs(call, spatial.AXIS, tensor_layout.largest(dims)[-1:])
        return call.split(tensor_layout, tensor_layout, variables, costs if summed else ())

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        values = keras.ops.cast(local.first, _exact(layer))
        moving = (layer.moving_mean, layer.moving_variance)
        mean, variance = (keras.ops.cast(local.value(weight), values.dtype) for weight in moving)
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


class SpatialGroupNormalizationRule(registry.Rule):
    """GroupNormalization over the rows of all ranks."""

    sharding = "rows"
    axes = (spatial.AXIS,)

    def split(self, call: registry.Call) -> registry.Split:
        layer, dims = call.layer, call.dimensions(call.first)
        dense.check(layer)
        spatial.check(call)
        if layer.axis not in (-1, len(dims) - 1):
            raise registry.CannotSplitError(
                f"its axis is {layer.axis}: give -1, or replicate the layer"
            )
        tensor_layout = spatial.as_it_comes(call, channels=False)
        costs = _costs(call, spatial.AXIS, (dims[0], layer.groups))
        return call.split(tensor_layout, tensor_layout, call.unsharded(spatial.SUMMED), costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        values = keras.ops.cast(local.first, _exact(layer))
        channels = values.shape[-1]
        groups = [*values.shape[:-1], layer.groups, channels // layer.groups]
        grouped = tf.reshape(values, groups)
        reduced = [*range(1, len(groups) - 2), len(groups) - 1]
        mean, variance = _moments(local, grouped, reduced)
        normal = (grouped - mean) * tf.math.rsqrt(variance + layer.epsilon)
        dims = [1] * (values.shape.rank - 1) + [channels]
        return [_scaled(local, tf.reshape(normal, values.shape), ("gamma", "beta"), dims)]


RULES: registry.Rules = {
    "LayerNormalization": (LayerNormalizationRule(("gamma", "beta"), 2),),
    "RMSNormalization": (LayerNormalizationRule(("scale",), 1),),
    "GroupNormalization": (GroupNormalizationRule(), SpatialGroupNormalizationRule()),
    "BatchNormalization": BatchNormalizationRule.pair(),
}


def _axes(tensor_layout: layout.Layout, reduced: Sequence[int]) -> list[shape.Axis]:
    """The axes that shard normalised dimensions."""
    return [cut.axis for index in reduced if (cut := tensor_layout.cuts[index]) is not None]


def _costs(
    call: registry.Call, axis: shape.Axis, dims: Sequence[int | None], sums: int = 2
) -> tuple[communication.Traffic, ...]:
    """The cost of sums in the forward pass, and of those of their gradients."""
    works = [schedule.Pass.FORWARD, *call.backward(call.first)] * sums
    return call.sends(communication.CollectiveKind.SUM, axis, works, dims, _exact(call.layer))


def _moments(
    local: registry.Local, values: tf.Tensor, axes: Sequence[int], synchronized: bool = False
) -> tuple[tf.Tensor, tf.Tensor]:
    """Mean and variance over axes and ranks.

    Two sums are needed, because the mean of squares would lose small variances.
    """
    position = local.split.wants[local.node.inputs[0]].find_cut(spatial.AXIS)
    cut = None if position is None else position[1]
    count = tf.cast(tf.reduce_prod(tf.gather(tf.shape(values), axes)), values.dtype)
    group = local.groups[spatial.AXIS]
    times = 1.0 if cut is None else cut.size / cut.sizes[group.index]

    def add_up(tensor: tf.Tensor) -> tf.Tensor:
        total = tensor if cut is None else adjoint.all_reduce(group, tensor)
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


def _weight(local: registry.Local, variable: Any, dtype: Any) -> Any:
    """A rank's part of an optional weight."""
    return None if variable is None else keras.ops.cast(local.value(variable), dtype)


def _scaled(
    local: registry.Local, normalised: tf.Tensor, names: Sequence[str], dims: Sequence[int]
) -> Any:
    """Apply an optional factor and summand, reshaped, in the layer's type."""
    weights = [_weight(local, getattr(local.layer, name), normalised.dtype) for name in names]
    factor, *summands = [None if weight is None else tf.reshape(weight, dims) for weight in weights]
    if factor is not None:
        normalised = normalised * factor
    for weight in summands:
        if weight is not None:
            normalised = normalised + weight
    return keras.ops.cast(normalised, local.layer.compute_dtype)


def _exact(layer: Any) -> str:
    """The type of statistics: at least float32."""
    return str(keras.backend.result_type(layer.compute_dtype, "float32"))
