"""Layers that compute each place of an image or a sequence by itself, on places that come divided.

Weights are whole on each rank. Channels are, too.
"""

from collections.abc import Callable
from typing import Any

import keras

from tfparallel_trainer.engines.split.layers.rules import calling, dense, registry, space


class Places(calling.OnParts):
    """Each rank computes the rows that it has."""

    way = "rows"
    axes = (space.AXIS,)

    def __init__(self, is_alone: Callable[[Any, int], bool]) -> None:
        """Take what says of a layer and a rank of tensors whether rows are computed alone."""
        self._is_alone = is_alone

    def split(self, call: registry.Call) -> registry.Split:
        layer, rank = call.layer, len(call.dimensions(call.first))
        dense.check(layer)
        space.check_activation(call)
        if call.node.masks or not self._is_alone(layer, rank):
            raise registry.CannotSplitError(
                "it has a mask, or what it computes of a row depends on others"
            )
        lies = space.as_it_comes(call, channels=False)
        return call.split(lies, lies, call.unsharded(space.SUMMED))


def _is_along_others(layer: Any, rank: int) -> bool:
    axes = [layer.axis] if isinstance(layer.axis, int) else list(layer.axis)
    return all(axis % rank not in (0, space.ROWS) for axis in axes)


RULES: dict[type, tuple[registry.Rule, ...]] = {
    keras.layers.Dense: (Places(lambda _, rank: rank > 2),),
    keras.layers.PReLU: (Places(lambda prelu, _: space.ROWS in (prelu.shared_axes or ())),),
    keras.layers.UnitNormalization: (Places(_is_along_others),),
}
