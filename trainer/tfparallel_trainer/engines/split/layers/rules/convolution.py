"""Convolutions by filters (output channels), by channels of the input, or by groups of both.

Filters followed by channels need one sum forward and one backward, as a column and a row do.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout
from tfparallel_trainer.engines.split.layers.rules import dense, local_layers, registry
from tfparallel_trainer.engines.split.model import operations

_TENSOR = shape.Axis.TENSOR


@dataclasses.dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel of a layer, and its dimensions of filters and channels; None if it has none."""

    name: str
    filters: int | None
    channels: int | None

    def shard(
        self,
        call: registry.Call,
        dimension: int | None,
        cut: layout.Cut,
        summed: frozenset[shape.Axis] = frozenset(),
    ) -> dict[str, registry.Shard]:
        """Its layout if a dimension is divided. Several rows of a channel stay together."""
        kernel = getattr(call.layer, self.name)
        tensor_layout = layout.whole(len(kernel.shape))
        if dimension is None:
            return call.shards((kernel, tensor_layout), summed=summed | {_TENSOR})
        tensor_layout = tensor_layout.put(dimension, cut.times(kernel.shape[dimension] // cut.size))
        return call.shards((kernel, tensor_layout), summed=summed)


KERNELS = {
    "Conv*D": (Kernel("kernel", -1, -2),),
    "Conv*DTranspose": (Kernel("kernel", -2, -1),),
    "SeparableConv1D SeparableConv2D": (
        Kernel("depthwise_kernel", None, -2),
        Kernel("pointwise_kernel", -1, -2),
    ),
    "DepthwiseConv1D DepthwiseConv2D": (Kernel("kernel", None, -2),),
}
"""Kernels by names of layers, as `operations.layers` takes them."""


def shard_filters(
    call: registry.Call,
    kernels: Sequence[Kernel],
    filters: layout.Cut,
    summed: frozenset[shape.Axis] = frozenset(),
) -> dict[str, registry.Shard]:
    """Layouts of kernels and bias if filters are divided.

    Gradients of undivided kernels are sums.
    """
    variables: dict[str, registry.Shard] = {}
    for kernel in kernels:
        variables |= kernel.shard(call, kernel.filters, filters, summed)
    return variables | call.shards((call.layer.bias, layout.cut(1, 0, filters)), summed=summed)


class _ConvolutionRule(registry.Rule):
    axes = (_TENSOR,)

    def __init__(self, *kernels: Kernel) -> None:
        self._kernels = kernels

    def _input(self, call: registry.Call, unit: int = 1) -> tuple[layout.Layout, layout.Cut]:
        """The input sharded by channels, as before or again; `unit` channels stay together."""
        position = _channels(call.layer)
        cut = call.find_cut(call.first, position, _TENSOR)
        if cut is None or any(size % unit for size in cut.sizes):
            what = "channels" if unit == 1 else "groups"
            cut = call.divide(what, call.dimensions(call.first)[position], _TENSOR, unit)
        return call.whole(call.first).put(position, cut), cut

    def _output(self, call: registry.Call, cut: layout.Cut) -> layout.Layout:
        if not operations.is_elementwise(call.layer.activation):
            raise registry.CannotSplitError(
                "its activation needs all filters: make it a layer of its own, or replicate the "
                "layer"
            )
        return call.whole(call.result).put(_channels(call.layer), cut)


class FiltersRule(_ConvolutionRule):
    """Each rank computes some of the filters from all channels."""

    sharding = "filters"

    def split(self, call: registry.Call) -> registry.Split:
        _check_ungrouped(call.layer)
        filters = call.divide("filters", call.layer.filters, _TENSOR)
        variables = shard_filters(call, self._kernels, filters)
        costs = dense.copy_cost(call, call.whole(call.first))
        return call.split(None, self._output(call, filters), variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        kernel = self._kernels[-1]
        key = local.key(getattr(local.layer, kernel.name))
        filters = local.variables[key].shape[kernel.filters]
        tensor = adjoint.copy_to_group(local.groups[_TENSOR], local.first)
        spread = dataclasses.replace(local, tensors={**local.tensors, local.node.inputs[0]: tensor})
        config = {"filters": filters, "activation": None}
        (output,) = local_layers.smaller(spread, config, local.variables)
        return [operations.apply(local.layer.activation, output)]


class ChannelsRule(_ConvolutionRule):
    """Each rank computes a summand of all filters from some of the channels."""

    sharding = "channels"

    def split(self, call: registry.Call) -> registry.Split:
        _check_ungrouped(call.layer)
        input_layout, cut = self._input(call)
        variables: dict[str, registry.Shard] = {}
        for kernel in self._kernels:
            variables |= kernel.shard(call, kernel.channels, cut)
        return call.split(input_layout, None, variables, dense.reduce_cost(call))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        without = {"use_bias": False, "activation": None}
        kernels = dict(local.variables)
        if layer.use_bias:
            del kernels[local.key(layer.bias)]
        (summand,) = local_layers.smaller(local, without, kernels)
        output = adjoint.reduce_from_group(local.groups[_TENSOR], summand)
        if layer.use_bias:
            dims = [1] * output.shape.rank
            dims[_channels(layer)] = -1
            output = output + keras.ops.reshape(local.value(layer.bias), dims)
        return [operations.apply(layer.activation, output)]


class GroupsRule(_ConvolutionRule):
    """Each rank computes whole groups of channels with the filters that belong to them."""

    sharding = "groups"

    def split(self, call: registry.Call) -> registry.Split:
        layer, position = call.layer, _channels(call.layer)
        dense.check(layer)
        size = call.dimensions(call.first)[position]
        groups = getattr(layer, "groups", size) or 1
        if groups == 1:
            raise registry.CannotSplitError("it has one group: split it by filters or channels")
        unit = (size or 1) // groups
        input_layout, cut = self._input(call, unit)
        filters_of_group = (call.dimensions(call.result)[position] or 1) // groups
        filters = cut.coarsen(unit).times(filters_of_group)
        (kernel,) = self._kernels
        if kernel.filters is None:
            variables = kernel.shard(call, kernel.channels, cut)
        else:
            variables = kernel.shard(call, kernel.filters, filters)
        variables |= call.shards((layer.bias, layout.cut(1, 0, filters)))
        return call.split(input_layout, self._output(call, filters), variables)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        config: dict[str, Any] = {"activation": None}
        if hasattr(layer, "filters") and self._kernels[0].filters is not None:
            position = _channels(layer)
            size = local.model.tensors[local.node.inputs[0]].shape[position]
            share = local.first.shape[position] / (size or 1)
            config["groups"] = round(layer.groups * share)
            config["filters"] = round(layer.filters * share)
        (output,) = local_layers.smaller(local, config, local.variables)
        return [operations.apply(layer.activation, output)]


_RULES_OF_KERNELS: dict[str, tuple[type[_ConvolutionRule], ...]] = {
    "Conv*D": (FiltersRule, ChannelsRule, GroupsRule),
    "Conv*DTranspose": (FiltersRule, ChannelsRule),
    "SeparableConv1D SeparableConv2D": (FiltersRule, ChannelsRule),
    "DepthwiseConv1D DepthwiseConv2D": (GroupsRule,),
}

RULES: registry.Rules = {
    names: tuple(rule(*KERNELS[names]) for rule in rules)
    for names, rules in _RULES_OF_KERNELS.items()
}


def _check_ungrouped(layer: Any) -> None:
    dense.check(layer)
    if getattr(layer, "groups", 1) > 1:
        raise registry.CannotSplitError("it has groups: split it by groups")


def _channels(layer: Any) -> int:
    """The dimension of the channels in a layer's inputs and outputs."""
    return -1 if layer.data_format == "channels_last" else 1
