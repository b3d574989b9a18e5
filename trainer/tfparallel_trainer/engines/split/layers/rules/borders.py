"""Layers that add or leave out rows: zero padding, cropping, repeating."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import layout, rows
from tfparallel_trainer.engines.split.layers.rules import registry, space


class Borders(space.Passing):
    """Each rank makes some rows of the output; channels stay as they come."""

    def __init__(self, axis: shape.Axis, plan: Callable[[Any, int, rows.Spans], rows.Plan]) -> None:
        """Take what plans a layer along a dimension, counted from that of the rows."""
        super().__init__(axis)
        self._plan = plan

    def split(self, call: registry.Call) -> registry.Split:
        """Divide the rows, if they come divided."""
        space.check(call)
        layer = call.layer
        interpolation = getattr(layer, "interpolation", "nearest")
        if interpolation != "nearest":
            raise registry.CannotSplitError(
                f"its interpolation is {interpolation}: give nearest, or replicate the layer"
            )
        input_layout = space.as_it_comes(call)
        plan = space.planned(call, input_layout, lambda spans: self._plan(layer, 0, spans))
        return registry.Split(
            wants={call.first: input_layout},
            gives={call.result: space.output(input_layout, plan)},
            costs=space.halos(call, plan, input_layout),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Make the rank's rows."""
        layer = local.layer
        plan = self._plan(layer, 0, space.spans_of(local))
        image, share = space.brought(local, local.first, plan)
        shares = [share, *space.beside(image, lambda *arguments: self._plan(layer, *arguments))]
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


_PLANS = {"ZeroPadding": _padded, "Cropping": _cropped, "UpSampling": _repeated}

RULES: dict[type, tuple[registry.Rule, ...]] = {
    getattr(keras.layers, f"{name}{dimensions}D"): tuple(
        Borders(axis, plan) for axis in layout.AXES
    )
    for name, plan in _PLANS.items()
    for dimensions in (1, 2, 3)
}
