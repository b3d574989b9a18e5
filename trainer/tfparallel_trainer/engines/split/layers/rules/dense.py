"""Dense and EinsumDense: by outputs of the kernel (column) or by summed inputs (row).

A Dense layer's kernel is [features, units], an EinsumDense's has a letter for each dimension. A
column followed by a row needs one sum forward and one backward. The first one's output is sharded
as the second one needs it. Layers between them, such as an activation, work on the parts.

TensorFlow adds biases: `keras.ops.add` takes one of [2, 1] for the last dimension of two rows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import operations
from tfparallel_trainer.engines.split.pipeline import schedule

_TENSOR = shape.Axis.TENSOR


class ColumnRule(registry.Rule):
    """Each rank computes some of the units from all features."""

    sharding = "column"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        layer = call.layer
        check(layer)
        units = call.divide("units", layer.units, _TENSOR)
        input_layout = _input(call)
        parts = input_layout.put(-1, units)
        variables = call.shards(
            (layer.kernel, layout.cut(2, 1, units)),
            (layer.bias, layout.cut(1, 0, units)),
            summed=input_layout.axes,  # ranks then have summands of gradients
        )
        costs = copy_cost(call, input_layout)
        if operations.is_elementwise(layer.activation):
            return call.split(input_layout, parts, variables, costs)
        dims, forward = parts.largest(call.dimensions(call.result)), [schedule.Pass.FORWARD]
        costs += call.sends(communication.CollectiveKind.GATHER, _TENSOR, forward, dims)
        return call.split(input_layout, input_layout, variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer, group = local.layer, local.groups[_TENSOR]
        units = _product(local, adjoint.copy_to_group(group, local.first))
        if layer.bias is not None:
            units = units + local.value(layer.bias)
        if not operations.is_elementwise(layer.activation):
            output_layout = local.split.gives[local.node.outputs[0]]
            cut = local.split.variables[local.key(layer.kernel)].layout.cuts[-1]
            units = adjoint.reshard(units, output_layout.put(-1, cut), output_layout, local.groups)
        return [operations.apply(layer.activation, units)]


class RowRule(registry.Rule):
    """Each rank computes a summand of all units from some of the features."""

    sharding = "row"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        layer = call.layer
        check(layer)
        features = call.find_cut(call.first, -1, _TENSOR) or call.divide(
            "features", call.dimensions(call.first)[-1], _TENSOR
        )
        input_layout = _input(call).put(-1, features)
        output_layout = input_layout.put(-1, None)
        variables = call.shards(
            (layer.kernel, layout.cut(2, 0, features)),
            (layer.bias, layout.whole(1)),
            summed=output_layout.axes,  # ranks then have summands of gradients
        )
        return call.split(input_layout, output_layout, variables, reduce_cost(call, output_layout))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        output = adjoint.reduce_from_group(local.groups[_TENSOR], _product(local, local.first))
        if layer.bias is not None:
            output = output + local.value(layer.bias)
        return [operations.apply(layer.activation, output)]


class EinsumColumnRule(ColumnRule):
    """Each rank computes a part of the output, along the longest letter that the input lacks."""

    def split(self, call: registry.Call) -> registry.Split:
        check(call.layer)
        if not operations.is_elementwise(call.layer.activation):
            raise registry.CannotSplitError(
                "its activation needs the whole output: make it a layer of its own, or split the "
                "layer by row"
            )
        equation = _Equation.parse(call)
        letters = [letter for letter in equation.outputs if letter not in equation.inputs]
        letter, cut = equation.divide(call, letters)
        return call.split(
            gives=call.whole(call.result).put(equation.outputs[letter], cut),
            variables=equation.variables(call, letter, cut),
            costs=copy_cost(call, call.whole(call.first)),
        )


class EinsumRowRule(RowRule):
    """Each rank computes a summand along a summed letter: a sharded one, or else the longest."""

    def split(self, call: registry.Call) -> registry.Split:
        check(call.layer)
        equation = _Equation.parse(call)
        summed = [letter for letter in equation.inputs if letter not in equation.outputs]
        comes = {
            letter: call.find_cut(call.first, equation.inputs[letter], _TENSOR) for letter in summed
        }
        letter, cut = equation.divide(
            call, [letter for letter in summed if comes[letter]] or summed
        )
        cut = comes[letter] or cut
        return call.split(
            call.whole(call.first).put(equation.inputs[letter], cut),
            variables=equation.variables(call, letter, cut),
            costs=reduce_cost(call),
        )


RULES: registry.Rules = {
    "Dense": (ColumnRule(), RowRule()),
    "EinsumDense": (EinsumColumnRule(), EinsumRowRule()),
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Equation:
    """The dimension of each letter of an equation; dots are dimensions at either end."""

    inputs: dict[str, int]
    kernel: dict[str, int]
    outputs: dict[str, int]

    @classmethod
    def parse(cls, call: registry.Call) -> "_Equation":
        inputs, kernel_and_outputs = call.layer.equation.replace(" ", "").split(",")
        kernel, outputs = kernel_and_outputs.split("->")
        return cls(
            _places(inputs, len(call.dimensions(call.first))),
            _places(kernel, len(call.layer.kernel.shape)),
            _places(outputs, len(call.dimensions(call.result))),
        )

    def divide(self, call: registry.Call, letters: Sequence[str]) -> tuple[str, layout.Cut]:
        """Divide the letter along which the kernel has most rows."""
        dims = call.layer.kernel.shape
        sizes = {letter: dims[index] for letter, index in self.kernel.items() if letter in letters}
        if not sizes:
            raise registry.CannotSplitError(
                f"its equation {call.layer.equation} has no such letter: choose the other way"
            )
        letter = max(sizes, key=lambda letter: sizes[letter])
        return letter, call.divide(f"rows along {letter}", sizes[letter], _TENSOR)

    def variables(
        self, call: registry.Call, letter: str, cut: layout.Cut
    ) -> dict[str, registry.Shard]:
        """Layouts of kernel and bias; the bias has the last dimensions of the output."""
        kernel, bias = call.layer.kernel, call.layer.bias
        variables = call.shards((kernel, layout.cut(len(kernel.shape), self.kernel[letter], cut)))
        if bias is None:
            return variables
        rank = len(bias.shape)
        if letter in call.layer.bias_axes:
            position = self.outputs[letter] - len(call.dimensions(call.result))
            return variables | call.shards((bias, layout.cut(rank, position, cut)))
        # Each rank adds the full bias: to its part, or to the sum.
        partial = frozenset({_TENSOR}) if letter in self.outputs else frozenset()
        return variables | call.shards((bias, layout.whole(rank)), summed=partial)


def _places(letters: str, rank: int) -> dict[str, int]:
    front, _, behind = letters.partition("...")
    places = {letter: index for index, letter in enumerate(front)}
    return places | {letter: rank - len(behind) + index for index, letter in enumerate(behind)}


def _product(local: registry.Local, tensor: Any) -> Any:
    kernel = local.value(local.layer.kernel)
    if isinstance(local.layer, keras.layers.EinsumDense):
        return keras.ops.einsum(local.layer.equation, tensor, kernel)
    return keras.ops.matmul(tensor, kernel)


def _input(call: registry.Call) -> layout.Layout:
    """The layout of the input with all features, and other cuts if the activation allows."""
    if operations.is_by_place(call.layer.activation):
        return call.input_layouts[call.first].without(_TENSOR).put(-1, None)
    return call.whole(call.first)


def check(layer: Any) -> None:
    """Refuse (CannotSplitError) a layer that does not use its plain weights, or adds a loss."""
    for what, reason in (
        (getattr(layer, "lora_enabled", False), "LoRA"),
        (getattr(layer, "quantization_mode", None), "quantized weights"),
        (layer.activity_regularizer, "an activity_regularizer"),
    ):
        if what:
            raise registry.CannotSplitError(f"it has {reason}: do without, or replicate the layer")


def copy_cost(
    call: registry.Call, tensor_layout: layout.Layout
) -> tuple[communication.Traffic, ...]:
    """The cost of `adjoint.copy_to_group` of the first input."""
    dims = tensor_layout.largest(call.dimensions(call.first))
    return call.sends(communication.CollectiveKind.SUM, _TENSOR, call.backward(call.first), dims)


def reduce_cost(
    call: registry.Call, tensor_layout: layout.Layout | None = None
) -> tuple[communication.Traffic, ...]:
    """The cost of `adjoint.reduce_from_group` of the first output, replicated by default."""
    dims = (tensor_layout or call.whole(call.result)).largest(call.dimensions(call.result))
    return call.sends(communication.CollectiveKind.SUM, _TENSOR, [schedule.Pass.FORWARD], dims)
