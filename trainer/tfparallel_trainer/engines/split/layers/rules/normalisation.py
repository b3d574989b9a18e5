"""Normalisations of tensors that are cut, over the dimension that is cut or over others.

Where a cut dimension is normalised, sums are those of all ranks, and the weights are cut with it.
Where another one is cut, each rank normalises what it has with the whole weights.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, traffic
from tfparallel_trainer.engines.split.layers.rules import calling, dense, registry
from tfparallel_trainer.engines.split.pipeline import schedule


class Parts(registry.Rule):
    """LayerNormalization and RMSNormalization of the part that each rank has."""

    way = "parts"

    def __init__(self, weights: Sequence[str], sums: int) -> None:
        self._weights = weights
        """The attributes of the layer that are weights."""
        self._sums = sums
        """How many sums it takes: of the squares, or of the values before."""

    def split(self, call: registry.Call) -> registry.Split:
        """Keep the layout of the input."""
        layer, lies = call.layer, call.input_layouts[call.first]
        dense.check(layer)
        if lies.is_whole or getattr(layer, "rms_scaling", False):
            raise registry.CannotSplitError("its input is whole, or it has rms_scaling")
        reduced = _reduced(layer, len(lies.cuts))
        weight = registry.Shard(
            layout.Layout(tuple(lies.cuts[place] for place in reduced)),
            frozenset(
                cut.axis
                for place, cut in enumerate(lies.cuts)
                if cut is not None and place not in reduced
            ),
        )
        dims = tuple(
            1 if place in reduced else size
            for place, size in enumerate(lies.largest(call.dimensions(call.first)))
        )
        weights = (getattr(layer, name) for name in self._weights)
        return registry.Split(
            wants={call.first: lies},
            gives={call.result: lies},
            variables={call.key(one): weight for one in weights if one is not None},
            costs=tuple(
                traffic.Traffic(
                    kind=traffic.Kind.SUM, axis=axis, work=work, shape=dims, dtype=_exact(layer)
                )
                for axis in _axes(lies, reduced)
                for work in schedule.Work
                for _ in range(self._sums)
                if work is schedule.Work.FORWARD or call.first in call.trained
            ),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Normalise the rank's part."""
        layer = local.layer
        lies = local.split.wants[local.node.inputs[0]]
        values = tf.cast(local.first, _exact(layer))
        reduced = _reduced(layer, values.shape.rank)
        full_dims = local.model.tensors[local.node.inputs[0]].shape
        count = 1
        for place in reduced:
            count *= full_dims[place] or 1

        def mean(tensor: tf.Tensor) -> tf.Tensor:
            total = tf.reduce_sum(tensor, reduced, keepdims=True)
            for axis in _axes(lies, reduced):
                total = adjoint.add_up(local.groups[axis], total)
            return total / count

        if self._sums == 2:
            values = values - mean(values)
        normalised = values * tf.math.rsqrt(mean(tf.square(values)) + layer.epsilon)
        dims = [size if place in reduced else 1 for place, size in enumerate(values.shape)]
        scale, *shift = [
            None
            if getattr(layer, name) is None
            else tf.reshape(tf.cast(local.value(getattr(layer, name)), normalised.dtype), dims)
            for name in self._weights
        ]
        if scale is not None:
            normalised = normalised * scale
        for one in shift:
            if one is not None:
                normalised = normalised + one
        return [tf.cast(normalised, layer.compute_dtype)]


class Groups(registry.Rule):
    """GroupNormalization of whole groups of channels on each rank."""

    way = "channels"

    def split(self, call: registry.Call) -> registry.Split:
        """Keep the cut of the channels when no border lies within a group."""
        layer, rank = call.layer, len(call.dimensions(call.first))
        dense.check(layer)
        place = layer.axis % rank
        cut = call.lies(call.first, place, shape.Axis.TENSOR)
        if cut is None:
            raise registry.CannotSplitError("its channels are whole")
        try:
            cut.over(cut.size // layer.groups)
        except ValueError as error:
            raise registry.CannotSplitError(f"a group would be divided: {error}") from error
        lies = layout.cut(rank, place, cut)
        return registry.Split(
            wants={call.first: lies},
            gives={call.result: lies},
            variables={
                call.key(one): registry.Shard(layout.cut(1, 0, cut)) for one in layer.weights
            },
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Normalise the rank's groups."""
        layer = local.layer
        channels = local.model.tensors[local.node.inputs[0]].shape[layer.axis] or 1
        local_groups = local.first.shape[layer.axis] * layer.groups // channels
        return calling.smaller(
            local,
            {"groups": local_groups},
            {local.key(one): local.variables[local.key(one)] for one in layer.variables},
        )


RULES: dict[type, tuple[registry.Rule, ...]] = {
    keras.layers.LayerNormalization: (Parts(("gamma", "beta"), 2),),
    keras.layers.RMSNormalization: (Parts(("scale",), 1),),
    keras.layers.GroupNormalization: (Groups(),),
}


def _reduced(layer: Any, rank: int) -> list[int]:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    return [axis % rank for axis in axes]


def _axes(lies: layout.Layout, reduced: Sequence[int]) -> list[shape.Axis]:
    """The axes that cut what is normalised."""
    return [cut.axis for place in reduced if (cut := lies.cuts[place]) is not None]


def _exact(layer: Any) -> str:
    """The type in which statistics are computed: at least float32."""
    return str(keras.backend.result_type(layer.compute_dtype, "float32"))
