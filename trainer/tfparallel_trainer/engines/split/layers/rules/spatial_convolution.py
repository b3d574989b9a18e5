"""Convolutions whose rows are divided: each rank computes its rows from its own and its halo.

Weights are whole on each rank ("rows"), or their filters are divided over the tensor axis at the
same time ("rows and filters"). Kernels as Keras has them: [height, width, channels, filters] and
so on; the filters of a transposed one are the dimension before the last.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, row_division
from tfparallel_trainer.engines.split.layers.rules import convolution, dense, registry, spatial
from tfparallel_trainer.engines.split.model import operations

_TENSOR = shape.Axis.TENSOR
_TRANSPOSED = operations.layers("Conv*DTranspose")


class RowsRule(registry.Rule):
    """Each rank computes some of the rows."""

    sharding = "rows"
    axes: tuple[shape.Axis, ...] = (spatial.AXIS,)

    def __init__(
        self, kernels: Sequence[convolution.Kernel], operation: Callable[..., Any]
    ) -> None:
        """Take the layer's kernels, the last of which has the filters, and what applies them."""
        self._kernels = kernels
        self._operation = operation

    def split(self, call: registry.Call) -> registry.Split:
        input_layout, plan = self._plan(call)
        return call.split(
            input_layout,
            spatial.output(input_layout, plan),
            call.unsharded(spatial.SUMMED),
            spatial.halos(call, plan, input_layout),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        return [self._convolved(local, local.first)]

    def _plan(self, call: registry.Call) -> tuple[layout.Layout, row_division.RowPlan]:
        """How the input is to lie, all channels on each rank, and what the ranks do.

        What comes whole and has no gradient, as a batch of images, stays so: it has the halo.
        """
        dense.check(call.layer)
        spatial.check(call)
        spatial.check_activation(call)
        sharded_layout = spatial.sharded_rows(call)
        free = call.input_layouts[call.first].is_whole and call.first not in call.trained
        plan = spatial.planned(call, sharded_layout, _plan_of, free)
        return call.whole(call.first) if free else sharded_layout, plan

    def _convolved(self, local: registry.Local, tensor: Any) -> Any:
        layer = local.layer
        image, shares = spatial.brought(local, tensor, _plan_of)
        is_transposed = type(layer) in _TRANSPOSED
        image = self._operation(
            image if is_transposed else spatial.surrounded(image, shares),
            *(local.value(getattr(layer, kernel.name)) for kernel in self._kernels),
            strides=list(layer.strides) if is_transposed else layer.strides,
            padding="valid",
            data_format=layer.data_format,
            dilation_rate=layer.dilation_rate,
        )
        if is_transposed:
            image = spatial.kept(image, shares)
        if layer.use_bias:
            image = keras.ops.add(image, local.value(layer.bias))
        return operations.apply(layer.activation, image)


class RowsAndFiltersRule(RowsRule):
    """Each rank computes some of the filters of some of the rows."""

    sharding = "rows and filters"
    axes = (spatial.AXIS, _TENSOR)

    def split(self, call: registry.Call) -> registry.Split:
        if self._kernels[-1].filters is None or getattr(call.layer, "groups", 1) > 1:
            raise registry.CannotSplitError(
                "its filters belong to some of its channels each: split it by rows"
            )
        input_layout, plan = self._plan(call)
        units = call.divide("filters", call.layer.filters, _TENSOR)
        variables = convolution.shard_filters(call, self._kernels, units, spatial.SUMMED)
        if not operations.is_elementwise(call.layer.activation):
            raise registry.CannotSplitError(
                f"its activation {operations.label(call.layer.activation)} needs all filters: "
                "split it by rows, or make the activation a layer of its own"
            )
        return call.split(
            input_layout,
            spatial.output(input_layout, plan).put(-1, units),
            variables,
            (*dense.copy_cost(call, input_layout), *spatial.halos(call, plan, input_layout)),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        return [self._convolved(local, adjoint.copy_to_group(local.groups[_TENSOR], local.first))]


def _plan_of(layer: Any, position: int, spans: row_division.Spans) -> row_division.RowPlan:
    window = row_division.Window(
        layer.kernel_size[position], layer.strides[position], layer.dilation_rate[position]
    )
    if type(layer) not in _TRANSPOSED:
        return row_division.windows(spans, window, layer.padding)
    sizes = [1] * len(layer.kernel_size)
    sizes[position] = spans[-1].stop
    output_size = layer.compute_output_shape((1, *sizes, 1))[1 + position]
    return row_division.transposed(spans, output_size, window, layer.padding)


_OPERATIONS = {
    "Conv*D": keras.ops.conv,
    "DepthwiseConv1D DepthwiseConv2D": keras.ops.depthwise_conv,
    "SeparableConv1D SeparableConv2D": keras.ops.separable_conv,
    "Conv*DTranspose": keras.ops.conv_transpose,
}

RULES: registry.Rules = {
    names: tuple(
        rule(convolution.KERNELS[names], operation) for rule in (RowsAndFiltersRule, RowsRule)
    )
    for names, operation in _OPERATIONS.items()
}
