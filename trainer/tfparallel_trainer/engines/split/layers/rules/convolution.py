"""Convolutions by filters (output channels), by channels of the input, or by groups of both.

Filters and then channels need one sum forward and one backward between two layers, as a column and
a row do.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout
from tfparallel_trainer.engines.split.layers.rules import calling, dense, registry
from tfparallel_trainer.engines.split.model import operations

_TENSOR = shape.Axis.TENSOR


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a layer, and the dimensions of it that a way cuts; None is whole."""

    name: str
    filters: int | None
    channels: int | None


class _ConvolutionRule(registry.Rule):
    axes = (_TENSOR,)

    def __init__(self, *kernels: Kernel) -> None:
        self._kernels = kernels

    def _input(self, call: registry.Call, unit: int = 1) -> tuple[layout.Layout, layout.Cut]:
        """The input cut by channels, as it comes or cut again; `unit` channels stay together."""
        rank = len(call.dimensions(call.first))
        place = channels(call.layer, rank)
        size = call.dimensions(call.first)[place]
        cut = call.lies(call.first, place, _TENSOR)
        if cut is None or any(one % unit for one in cut.sizes):
            cut = call.divide("channels" if unit == 1 else "groups", size, _TENSOR, unit)
        return layout.cut(rank, place, cut), cut

    def _output(self, call: registry.Call, cut: layout.Cut) -> layout.Layout:
        rank = len(call.dimensions(call.result))
        if not operations.is_elementwise(call.layer.activation):
            raise registry.CannotSplitError(
                "its activation needs all filters: make it a layer of its own, or replicate the "
                "layer"
            )
        return layout.cut(rank, channels(call.layer, rank), cut)


class Filters(_ConvolutionRule):
    """Each rank computes some of the filters from all channels."""

    way = "filters"

    def split(self, call: registry.Call) -> registry.Split:
        layer = call.layer
        _check_ungrouped(layer)
        filters = call.divide("filters", layer.filters, _TENSOR)
        variables = {
            call.key(getattr(layer, one.name)): registry.Shard(
                _kernel(call, one.name, one.filters, filters),
                frozenset({_TENSOR}) if one.filters is None else frozenset(),
            )
            for one in self._kernels
        }
        if layer.use_bias:
            variables[call.key(layer.bias)] = registry.Shard(layout.cut(1, 0, filters))
        costs = dense.spreading(call, call.whole(call.first))
        return call.split(None, self._output(call, filters), variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        kernel = self._kernels[-1]
        key = local.key(getattr(local.layer, kernel.name))
        filters = local.variables[key].shape[kernel.filters]
        tensor = adjoint.spread(local.groups[_TENSOR], local.first)
        spread = dataclasses.replace(local, tensors={**local.tensors, local.node.inputs[0]: tensor})
        config = {"filters": filters, "activation": None}
        (output,) = calling.smaller(spread, config, local.variables)
        return [operations.apply(local.layer.activation, output)]


class Channels(_ConvolutionRule):
    """Each rank computes a summand of all filters from some of the channels."""

    way = "channels"

    def split(self, call: registry.Call) -> registry.Split:
        _check_ungrouped(call.layer)
        input_layout, cut = self._input(call)
        variables = {
            call.key(getattr(call.layer, one.name)): registry.Shard(
                _kernel(call, one.name, one.channels, cut)
            )
            for one in self._kernels
        }
        return call.split(input_layout, None, variables, dense.summing(call))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        without = {"use_bias": False, "activation": None}
        kernels = dict(local.variables)
        if layer.use_bias:
            del kernels[local.key(layer.bias)]
        (summand,) = calling.smaller(local, without, kernels)
        output = adjoint.total(local.groups[_TENSOR], summand)
        if layer.use_bias:
            rank = output.shape.rank
            dims = [1] * rank
            dims[channels(layer, rank)] = -1
            output = output + keras.ops.reshape(local.value(layer.bias), dims)
        return [operations.apply(layer.activation, output)]


class Groups(_ConvolutionRule):
    """Each rank computes whole groups of channels with the filters that belong to them."""

    way = "groups"

    def split(self, call: registry.Call) -> registry.Split:
        layer = call.layer
        dense.check(layer)
        size = call.dimensions(call.first)[channels(layer, len(call.dimensions(call.first)))]
        groups = getattr(layer, "groups", size) or 1
        if groups == 1:
            raise registry.CannotSplitError("it has one group: split it by filters or channels")
        input_layout, cut = self._input(call, (size or 1) // groups)
        output_dims = call.dimensions(call.result)
        each = (output_dims[channels(layer, len(output_dims))] or 1) // groups
        filters = cut.over((size or 1) // groups).times(each)
        (kernel,) = self._kernels
        by = cut if kernel.filters is None else filters
        place = kernel.channels if kernel.filters is None else kernel.filters
        variables = {
            call.key(getattr(layer, kernel.name)): registry.Shard(
                _kernel(call, kernel.name, place, by)
            )
        }
        if layer.use_bias:
            variables[call.key(layer.bias)] = registry.Shard(layout.cut(1, 0, filters))
        return call.split(input_layout, self._output(call, filters), variables)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        config: dict[str, Any] = {"activation": None}
        if hasattr(layer, "filters") and self._kernels[0].filters is not None:
            full_dims = local.model.tensors[local.node.inputs[0]].shape
            place = channels(layer, len(full_dims))
            share = local.first.shape[place] / (full_dims[place] or 1)
            config["groups"] = round(layer.groups * share)
            config["filters"] = round(layer.filters * share)
        (output,) = calling.smaller(local, config, local.variables)
        return [operations.apply(layer.activation, output)]


_PLAIN = Kernel("kernel", -1, -2)
_TRANSPOSED = Kernel("kernel", -2, -1)
_DEPTHWISE = Kernel("kernel", None, -2)
_SEPARABLE = (Kernel("depthwise_kernel", None, -2), Kernel("pointwise_kernel", -1, -2))

_RULES: dict[str, tuple[registry.Rule, ...]] = {
    "Conv*D": (Filters(_PLAIN), Channels(_PLAIN), Groups(_PLAIN)),
    "Conv*DTranspose": (Filters(_TRANSPOSED), Channels(_TRANSPOSED)),
    "SeparableConv1D SeparableConv2D": (Filters(*_SEPARABLE), Channels(*_SEPARABLE)),
    "DepthwiseConv1D DepthwiseConv2D": (Groups(_DEPTHWISE),),
}

RULES: dict[type, tuple[registry.Rule, ...]] = {
    layer: rules for names, rules in _RULES.items() for layer in operations.layers(names)
}


def _check_ungrouped(layer: Any) -> None:
    dense.check(layer)
    if getattr(layer, "groups", 1) > 1:
        raise registry.CannotSplitError("it has groups: split it by groups")


def channels(layer: Any, rank: int) -> int:
    """The dimension of the channels in tensors that a layer takes and makes."""
    return rank - 1 if layer.data_format == "channels_last" else 1


def _kernel(
    call: registry.Call, name: str, dimension: int | None, cut: layout.Cut
) -> layout.Layout:
    """The layout of a kernel; one of several rows for each channel is cut with the channels."""
    dims = getattr(call.layer, name).shape
    if dimension is None:
        return layout.whole(len(dims))
    return layout.cut(len(dims), dimension, cut.times(dims[dimension] // cut.size))
