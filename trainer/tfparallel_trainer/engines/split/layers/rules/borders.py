"""Layers that add or leave out rows: zero padding, cropping, repeating."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.layers import layout, rows
from tfparallel_trainer.engines.split.layers.rules import registry, space
from tfparallel_trainer.engines.split.model import operations


class Borders(space.Sliding):
    """Each rank makes some rows of the output; channels stay as they come."""

    def split(self, call: registry.Call) -> registry.Split:
        interpolation = getattr(call.layer, "interpolation", "nearest")
        if interpolation != "nearest":
            raise registry.CannotSplitError(
                f"its interpolation is {interpolation}: give nearest, or replicate the layer"
            )
        return super().split(call)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        image, shares = space.brought(local, local.first, self._plan_of)
        for dimension, one in enumerate(shares[1:], space.ROWS + 1):
            chosen = slice(one.input.start, one.input.stop)
            image = image[(*[slice(None)] * dimension, chosen)]
        if hasattr(layer, "size"):
            for dimension, factor in enumerate(_each(layer.size), space.ROWS):
                image = tf.repeat(image, factor, dimension)
            return [space.kept(image, shares)]
        return [space.surrounded(image, shares)]


def _padded(layer: Any, place: int, spans: rows.Spans) -> rows.Plan:
    return rows.padded(spans, *_sides(layer.padding, place))


def _cropped(layer: Any, place: int, spans: rows.Spans) -> rows.Plan:
    before, after = _sides(layer.cropping, place)
    return rows.padded(spans, -before, -after)


def _repeated(layer: Any, place: int, spans: rows.Spans) -> rows.Plan:
    return rows.repeated(spans, _each(layer.size)[place])


def _sides(of_layer: Any, place: int) -> tuple[int, int]:
    """What a layer adds or leaves out before and after; one dimension has no tuple of its own."""
    before, after = of_layer if isinstance(of_layer[0], int) else of_layer[place]
    return before, after


def _each(size: Any) -> tuple[int, ...]:
    return (size,) if isinstance(size, int) else tuple(size)


_PLANS = {"ZeroPadding*D": _padded, "Cropping*D": _cropped, "UpSampling*D": _repeated}

RULES: dict[type, tuple[registry.Rule, ...]] = {
    layer: tuple(Borders(axis, plan) for axis in layout.AXES)
    for names, plan in _PLANS.items()
    for layer in operations.layers(names)
}
