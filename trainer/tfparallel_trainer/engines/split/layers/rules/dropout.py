"""Dropout and noise on parts of a tensor."""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.engines.split.layers import layout
from tfparallel_trainer.engines.split.layers.rules import calling, registry
from tfparallel_trainer.engines.split.model import operations

_SPREAD = 715_827_883
"""Between the seeds of two parts; far beyond the steps that seeds are apart otherwise."""


class Random(registry.Rule):
    """Dropout and noise: each rank draws for its part, from a seed of its own part.

    So parts of one tensor differ, ranks with the same part draw the same, and what is drawn
    follows from the layer's seed. It is not what the unsplit layer would draw, unless that is
    asked for: then each rank draws for the whole tensor, and keeps its part.
    """

    way = "parts"

    def __init__(self, neutral: float) -> None:
        self._neutral = neutral
        """What the layer draws its factors (1.0) or summands (0.0) from."""

    def split(self, call: registry.Call) -> registry.Split:
        input_layout = call.input_layouts[call.first]
        if input_layout.is_whole:
            raise registry.CannotSplitError("its input is whole")
        if getattr(call.layer, "noise_shape", None) is not None:
            raise registry.CannotSplitError("it has a noise_shape")
        return call.split(input_layout, input_layout)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        lies = local.split.wants[local.node.inputs[0]]
        if local.same_dropout:
            return [self._as_whole(local, lies)]
        return calling.call_layer(local, seed_offset(local, _drawn(local.layer, lies)))

    def _as_whole(self, local: registry.Local, lies: layout.Layout) -> Any:
        first = local.node.inputs[0]
        tensor = local.first
        full_dims = local.model.tensors[first].shape
        dims = tuple(
            here if size is None else size
            for here, size in zip(keras.ops.shape(tensor), full_dims, strict=True)
        )
        neutral = keras.ops.full(dims, self._neutral, tensor.dtype)
        (drawn,) = calling.call_layer(dataclasses.replace(local, tensors={first: neutral}))
        part = drawn[lies.part(local.place())]
        return tensor * part if self._neutral else tensor + part


_SPATIAL = operations.layers("SpatialDropout*D")
_DROPOUTS = (*operations.layers("Dropout GaussianDropout"), *_SPATIAL)

RULES: dict[type, tuple[registry.Rule, ...]] = {
    **dict.fromkeys(_DROPOUTS, (Random(neutral=1.0),)),
    keras.layers.GaussianNoise: (Random(neutral=0.0),),
}


def _drawn(layer: Any, lies: layout.Layout) -> layout.Layout:
    """How what is drawn lies: spatial dropout draws once for all places of an example's channel."""
    if not isinstance(layer, _SPATIAL):
        return lies
    channels = 1 if getattr(layer, "data_format", "channels_last") == "channels_first" else -1
    return layout.whole(len(lies.cuts)).put(channels, lies.cuts[channels])


def seed_offset(local: registry.Local, lies: layout.Layout) -> int:
    """What a rank adds to a seed, so that each part of a tensor that lies so has its own."""
    part = 0
    for cut in lies.cuts:
        if cut is not None:
            part = part * len(cut.sizes) + local.groups[cut.axis].index
    return part * _SPREAD
