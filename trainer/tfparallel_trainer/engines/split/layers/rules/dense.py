"""Dense: kernel [features, units], by units (column) or by features (row).

A column and then a row need one sum forward and one backward between them. What the first gives is
cut as the second wants it. What lies between, such as an activation, works on the parts.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, traffic
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import operations
from tfparallel_trainer.engines.split.pipeline import schedule

_TENSOR = shape.Axis.TENSOR


class _DenseRule(registry.Rule):
    axes = (_TENSOR,)

    def _product(self, local: registry.Local, tensor: Any) -> Any:
        return keras.ops.matmul(tensor, local.value(local.layer.kernel))


class Column(_DenseRule):
    """Each rank computes some of the units from all features."""

    way = "column"

    def split(self, call: registry.Call) -> registry.Split:
        check(call.layer)
        units = call.divide("units", call.layer.units, _TENSOR)
        input_layout = _input(call)
        parts = input_layout.put(-1, units)
        summed = input_layout.axes - {_TENSOR}  # they leave a sum of gradients
        variables = {call.key(call.layer.kernel): registry.Shard(layout.cut(2, 1, units), summed)}
        if call.layer.use_bias:
            variables[call.key(call.layer.bias)] = registry.Shard(layout.cut(1, 0, units), summed)
        costs = spreading(call, input_layout)
        if operations.is_elementwise(call.layer.activation):
            return call.split(input_layout, parts, variables, costs)
        dims, forward = parts.largest(call.dimensions(call.result)), [schedule.Work.FORWARD]
        costs += call.sends(traffic.Kind.GATHER, _TENSOR, forward, dims)
        return call.split(input_layout, input_layout, variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer, group = local.layer, local.groups[_TENSOR]
        units = self._product(local, adjoint.spread(group, local.first))
        if layer.bias is not None:
            units = units + local.value(layer.bias)
        if not operations.is_elementwise(layer.activation):
            output_layout = local.split.gives[local.node.outputs[0]]
            cut = local.split.variables[local.key(layer.kernel)].layout.cuts[-1]
            units = adjoint.reshard(units, output_layout.put(-1, cut), output_layout, local.groups)
        return [operations.apply(layer.activation, units)]


class Row(_DenseRule):
    """Each rank computes a summand of all units from some of the features."""

    way = "row"

    def split(self, call: registry.Call) -> registry.Split:
        check(call.layer)
        features = call.lies(call.first, -1, _TENSOR) or call.divide(
            "features", call.dimensions(call.first)[-1], _TENSOR
        )
        input_layout = _input(call).put(-1, features)
        output_layout = input_layout.put(-1, None)
        summed = input_layout.axes - {_TENSOR}  # they leave a sum of gradients
        variables = {
            call.key(call.layer.kernel): registry.Shard(layout.cut(2, 0, features), summed)
        }
        if call.layer.use_bias:
            variables[call.key(call.layer.bias)] = registry.Shard(layout.whole(1), summed)
        return call.split(input_layout, output_layout, variables, summing(call, output_layout))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        output = adjoint.total(local.groups[_TENSOR], self._product(local, local.first))
        if layer.bias is not None:
            output = output + local.value(layer.bias)
        return [operations.apply(layer.activation, output)]


RULES: dict[type, tuple[registry.Rule, ...]] = {keras.layers.Dense: (Column(), Row())}


def _input(call: registry.Call) -> layout.Layout:
    """The layout of the input with all features, cut by other axes if the activation allows it."""
    if operations.is_by_place(call.layer.activation):
        return call.input_layouts[call.first].without(_TENSOR).put(-1, None)
    return call.whole(call.first)


def check(layer: Any) -> None:
    """See that a layer computes with its plain weights and adds no loss.

    Raises:
        CannotSplitError: it does not.
    """
    for what, reason in (
        (getattr(layer, "lora_enabled", False), "LoRA"),
        (getattr(layer, "quantization_mode", None), "quantized weights"),
        (layer.activity_regularizer, "an activity_regularizer"),
    ):
        if what:
            raise registry.CannotSplitError(f"it has {reason}: do without, or replicate the layer")


def spreading(call: registry.Call, lies: layout.Layout) -> tuple[traffic.Traffic, ...]:
    """The cost of `adjoint.spread` of the first tensor that the node takes."""
    dims = lies.largest(call.dimensions(call.first))
    return call.sends(traffic.Kind.SUM, _TENSOR, call.backward(call.first), dims)


def summing(call: registry.Call, lies: layout.Layout | None = None) -> tuple[traffic.Traffic, ...]:
    """The cost of `adjoint.total` of the first tensor that the node makes; absent: it is whole."""
    dims = (lies or call.whole(call.result)).largest(call.dimensions(call.result))
    return call.sends(traffic.Kind.SUM, _TENSOR, [schedule.Work.FORWARD], dims)
