"""Convolutions whose rows are divided: each rank computes its rows from its own and its halo.

Weights are whole on each rank ("rows"), or their filters are divided over the tensor axis at the
same time ("rows and filters"). Kernels as Keras has them: [height, width, channels, filters] and
so on; the filters of a transposed one are the dimension before the last.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, rows
from tfparallel_trainer.engines.split.layers.rules import dense, registry, space
from tfparallel_trainer.engines.split.model import operations

_TENSOR = shape.Axis.TENSOR


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One kind of convolution."""

    kernels: tuple[str, ...]
    """The attributes of the layer that are its kernels; the last one has the filters."""
    filters: int | None
    """The dimension of the filters in it; None when each filter belongs to one channel."""
    plan_of: space.PlanOf
    apply: Callable[[Any, Any, Sequence[Any], Sequence[rows.Share]], Any]
    """From the layer, the input, the kernels and the share of each dimension: the output."""


class Rows(registry.Rule):
    """Each rank computes some of the rows."""

    way = "rows"
    axes: tuple[shape.Axis, ...] = (space.AXIS,)

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def split(self, call: registry.Call) -> registry.Split:
        input_layout, plan = self._plan(call)
        return call.split(
            input_layout,
            space.output(input_layout, plan),
            call.unsharded(space.SUMMED),
            space.halos(call, plan, input_layout),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        output = self._convolved(local, local.first)
        return [operations.apply(local.layer.activation, output)]

    def _plan(self, call: registry.Call) -> tuple[layout.Layout, rows.Plan]:
        """How the input is to lie, all channels on each rank, and what the ranks do.

        What comes whole and has no gradient, as the images of a batch, stays whole: then each rank
        has its halo already.
        """
        dense.check(call.layer)
        space.check(call)
        space.check_activation(call)
        sharded_layout = space.sharded_rows(call)
        free = call.input_layouts[call.first].is_whole and call.first not in call.trained
        plan = space.planned(call, sharded_layout, self._kind.plan_of, free)
        return call.whole(call.first) if free else sharded_layout, plan

    def _convolved(self, local: registry.Local, tensor: Any) -> Any:
        layer = local.layer
        image, shares = space.brought(local, tensor, self._kind.plan_of)
        kernels = [local.value(getattr(layer, name)) for name in self._kind.kernels]
        image = self._kind.apply(layer, image, kernels, shares)
        if layer.use_bias:
            image = keras.ops.add(image, local.value(layer.bias))
        return image


class RowsAndFilters(Rows):
    """Each rank computes some of the filters of some of the rows."""

    way = "rows and filters"
    axes = (space.AXIS, _TENSOR)

    def split(self, call: registry.Call) -> registry.Split:
        dimension = self._kind.filters
        if dimension is None or getattr(call.layer, "groups", 1) > 1:
            raise registry.CannotSplitError(
                "its filters belong to some of its channels each: split it by rows"
            )
        input_layout, plan = self._plan(call)
        units = call.divide("filters", call.layer.filters, _TENSOR)
        *others, last = (getattr(call.layer, name) for name in self._kind.kernels)
        both = space.SUMMED | {_TENSOR}
        variables = {
            call.key(one): registry.Shard(layout.whole(len(one.shape)), both) for one in others
        }
        kernel = layout.whole(len(last.shape)).put(dimension, units)
        variables[call.key(last)] = registry.Shard(kernel, space.SUMMED)
        if call.layer.use_bias:
            bias = registry.Shard(layout.cut(1, 0, units), space.SUMMED)
            variables[call.key(call.layer.bias)] = bias
        if not operations.is_elementwise(call.layer.activation):
            raise registry.CannotSplitError(
                f"its activation {operations.label(call.layer.activation)} needs all filters: "
                "split it by rows, or make the activation a layer of its own"
            )
        return call.split(
            input_layout,
            space.output(input_layout, plan).put(-1, units),
            variables,
            (*dense.spreading(call, input_layout), *space.halos(call, plan, input_layout)),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        output = self._convolved(local, adjoint.spread(local.groups[_TENSOR], local.first))
        return [operations.apply(local.layer.activation, output)]


def _windows(layer: Any, place: int, spans: rows.Spans) -> rows.Plan:
    return rows.windows(spans, _window(layer, place), layer.padding)


def _transposed(layer: Any, place: int, spans: rows.Spans) -> rows.Plan:
    sizes = [1] * len(layer.kernel_size)
    sizes[place] = spans[-1].stop
    output_size = layer.compute_output_shape((1, *sizes, 1))[1 + place]
    return rows.transposed(spans, output_size, _window(layer, place), layer.padding)


def _window(layer: Any, place: int) -> rows.Window:
    return rows.Window(layer.kernel_size[place], layer.strides[place], layer.dilation_rate[place])


def _by(operation: Callable[..., Any]) -> Callable[..., Any]:
    """What applies an operation of Keras to an input that has all its padding."""

    def apply(layer: Any, image: Any, kernels: Sequence[Any], shares: Sequence[rows.Share]) -> Any:
        return operation(
            space.surrounded(image, shares),
            *kernels,
            strides=layer.strides,
            padding="valid",
            data_format=layer.data_format,
            dilation_rate=layer.dilation_rate,
        )

    return apply


def _by_transposing(
    layer: Any, image: Any, kernels: Sequence[Any], shares: Sequence[rows.Share]
) -> Any:
    full = keras.ops.conv_transpose(
        image,
        *kernels,
        strides=list(layer.strides),
        padding="valid",
        data_format=layer.data_format,
        dilation_rate=layer.dilation_rate,
    )
    return space.kept(full, shares)


_PLAIN = Kind(("kernel",), -1, _windows, _by(keras.ops.conv))
_DEPTHWISE = Kind(("kernel",), None, _windows, _by(keras.ops.depthwise_conv))
_SEPARABLE = Kind(
    ("depthwise_kernel", "pointwise_kernel"), -1, _windows, _by(keras.ops.separable_conv)
)
_TRANSPOSED = Kind(("kernel",), -2, _transposed, _by_transposing)

_KINDS = {
    "Conv*D": _PLAIN,
    "DepthwiseConv1D DepthwiseConv2D": _DEPTHWISE,
    "SeparableConv1D SeparableConv2D": _SEPARABLE,
    "Conv*DTranspose": _TRANSPOSED,
}

RULES: dict[type, tuple[registry.Rule, ...]] = {
    layer: (RowsAndFilters(kind), Rows(kind))
    for names, kind in _KINDS.items()
    for layer in operations.layers(names)
}
