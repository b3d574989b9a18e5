"""Dense: kernel [features, units], by units (column) or by features (row).

A column and then a row need one sum forward and one backward between them. What the first gives is
cut as the second wants it. What lies between, such as an activation, works on the parts.
"""

from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, traffic
from tfparallel_trainer.engines.split.layers.rules import activations, registry
from tfparallel_trainer.engines.split.pipeline import schedule

_TENSOR = shape.Axis.TENSOR


class Column(registry.Rule):
    """Each rank computes some of the units from all features."""

    way = "column"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the units."""
        check(call.layer)
        units = call.divide("units", call.layer.units, _TENSOR)
        input_layout = _input(call)
        parts = input_layout.put(-1, units)
        summed = others(input_layout)
        variables = {call.key(call.layer.kernel): registry.Shard(layout.cut(2, 1, units), summed)}
        if call.layer.use_bias:
            variables[call.key(call.layer.bias)] = registry.Shard(layout.cut(1, 0, units), summed)
        costs = spreading(call, call.first, input_layout)
        keeps = activations.is_elementwise(call.layer.activation)
        if not keeps:
            costs += gathering(call, call.result, parts)
        return registry.Split(
            wants={call.first: input_layout},
            gives={call.result: parts if keeps else input_layout},
            variables=variables,
            costs=costs,
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Compute the rank's units."""
        layer, group = local.layer, local.groups[_TENSOR]
        output = keras.ops.matmul(adjoint.spread(group, local.first), local.value(layer.kernel))
        if layer.use_bias:
            output = output + local.value(layer.bias)
        return [finished(local, output, layer.kernel, layer.activation)]


class Row(registry.Rule):
    """Each rank computes a summand of all units from some of the features."""

    way = "row"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the features."""
        check(call.layer)
        features = call.lies(call.first, -1, _TENSOR) or call.divide(
            "features", call.dimensions(call.first)[-1], _TENSOR
        )
        input_layout = _input(call).put(-1, features)
        output_layout = input_layout.put(-1, None)
        summed = others(input_layout)
        variables = {
            call.key(call.layer.kernel): registry.Shard(layout.cut(2, 0, features), summed)
        }
        if call.layer.use_bias:
            variables[call.key(call.layer.bias)] = registry.Shard(layout.whole(1), summed)
        return registry.Split(
            wants={call.first: input_layout},
            gives={call.result: output_layout},
            variables=variables,
            costs=summing(call, call.result, output_layout),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Compute the rank's summand, and add up."""
        layer = local.layer
        summand = keras.ops.matmul(local.first, local.value(layer.kernel))
        output = adjoint.total(local.groups[_TENSOR], summand)
        if layer.use_bias:
            output = output + local.value(layer.bias)
        return [activations.apply(layer.activation, output)]


RULES: dict[type, tuple[registry.Rule, ...]] = {keras.layers.Dense: (Column(), Row())}


def _input(call: registry.Call) -> layout.Layout:
    """The layout of the input with all features, cut by other axes if the activation allows it."""
    if activations.is_by_place(call.layer.activation):
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


def others(input_layout: layout.Layout) -> frozenset[shape.Axis]:
    """The axes other than the tensor axis that cut a tensor, and so leave a sum of gradients."""
    return frozenset(axis for axis in layout.AXES if axis is not _TENSOR) & frozenset(
        cut.axis for cut in input_layout.cuts if cut is not None
    )


def spreading(call: registry.Call, tensor: int, lies: layout.Layout) -> tuple[traffic.Traffic, ...]:
    """The cost of `adjoint.spread` of a tensor that the node takes."""
    if tensor not in call.trained:
        return ()
    return (_of(call, tensor, lies, traffic.Kind.SUM, schedule.Work.BACKWARD),)


def summing(call: registry.Call, tensor: int, lies: layout.Layout) -> tuple[traffic.Traffic, ...]:
    """The cost of `adjoint.total` of a tensor that the node makes."""
    return (_of(call, tensor, lies, traffic.Kind.SUM, schedule.Work.FORWARD),)


def gathering(call: registry.Call, tensor: int, lies: layout.Layout) -> tuple[traffic.Traffic, ...]:
    """The cost of `adjoint.gather` of a tensor that the node makes."""
    return (_of(call, tensor, lies, traffic.Kind.GATHER, schedule.Work.FORWARD),)


def _of(
    call: registry.Call,
    tensor: int,
    lies: layout.Layout,
    kind: traffic.Kind,
    work: schedule.Work,
) -> traffic.Traffic:
    dtype = call.layer.compute_dtype
    return traffic.Traffic(
        kind=kind,
        axis=_TENSOR,
        work=work,
        shape=lies.largest(call.dimensions(tensor)),
        dtype=traffic.carried(dtype) if kind is traffic.Kind.GATHER else dtype,
    )


def finished(local: registry.Local, units: Any, kernel: Any, activation: Any) -> Any:
    """Apply a layer's activation to the rank's units, gathered first when it needs them all."""
    if activations.is_elementwise(activation):
        return activations.apply(activation, units)
    output_layout = local.split.gives[local.node.outputs[0]]
    parts = output_layout.put(-1, local.split.variables[local.key(kernel)].layout.cuts[-1])
    return activation(adjoint.reshard(units, parts, output_layout, local.groups))
