"""EinsumDense: by a letter of the kernel that the output has (column) or that is summed (row).

Biases are added by TensorFlow: `keras.ops.add` takes a bias [2, 1] for one of the last dimension
where that has two rows.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import layout
from tfparallel_trainer.engines.split.layers.rules import dense, registry
from tfparallel_trainer.engines.split.model import operations

_TENSOR = shape.Axis.TENSOR


@dataclasses.dataclass(frozen=True, slots=True)
class _Equation:
    """Which dimension each letter is."""

    inputs: dict[str, int]
    kernel: dict[str, int]
    outputs: dict[str, int]
    bias: dict[str, int]
    """Of the bias; only its letters of more than one row."""


class _Product:
    def _product(self, local: registry.Local, tensor: Any) -> Any:
        return keras.ops.einsum(local.layer.equation, tensor, local.value(local.layer.kernel))


class Column(_Product, dense.Column):
    """Each rank computes some of the output along a letter that the input has not."""

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the letter with most rows."""
        layer, equation = call.layer, _parsed(call)
        dense.check(layer)
        if not operations.is_elementwise(layer.activation):
            raise registry.CannotSplitError(
                "its activation needs the whole output: make it a layer of its own, or split the "
                "layer by row"
            )
        letters = [
            one for one in equation.kernel if one in equation.outputs and one not in equation.inputs
        ]
        letter, cut = _chosen(call, letters, equation.kernel)
        return call.split(
            gives=call.whole(call.result).put(equation.outputs[letter], cut),
            variables=_variables(call, equation, letter, cut),
            costs=dense.spreading(call, call.whole(call.first)),
        )


class Row(_Product, dense.Row):
    """Each rank computes a summand from some of the input along a letter that is summed."""

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the letter with which the input comes cut, or that with most rows."""
        layer, equation = call.layer, _parsed(call)
        dense.check(layer)
        letters = [
            one for one in equation.kernel if one in equation.inputs and one not in equation.outputs
        ]
        comes = [one for one in letters if call.lies(call.first, equation.inputs[one], _TENSOR)]
        letter, cut = _chosen(call, comes or letters, equation.kernel)
        cut = call.lies(call.first, equation.inputs[letter], _TENSOR) or cut
        return call.split(
            call.whole(call.first).put(equation.inputs[letter], cut),
            variables=_variables(call, dataclasses.replace(equation, bias={}), letter, cut),
            costs=dense.summing(call),
        )


RULES: dict[type, tuple[registry.Rule, ...]] = {keras.layers.EinsumDense: (Column(), Row())}


def _variables(
    call: registry.Call, equation: _Equation, letter: str, cut: layout.Cut
) -> dict[str, registry.Shard]:
    layer = call.layer
    kernel = layout.cut(len(layer.kernel.shape), equation.kernel[letter], cut)
    variables = {call.key(layer.kernel): registry.Shard(kernel)}
    if layer.bias is not None:
        rank = len(layer.bias.shape)
        if letter in equation.bias:
            bias = registry.Shard(layout.cut(rank, equation.bias[letter], cut))
        else:  # each rank adds the whole bias: to its part, or to the sum
            partial = frozenset({_TENSOR}) if letter in equation.outputs else frozenset()
            bias = registry.Shard(layout.whole(rank), partial)
        variables[call.key(layer.bias)] = bias
    return variables


def _chosen(
    call: registry.Call, letters: Sequence[str], kernel: dict[str, int]
) -> tuple[str, layout.Cut]:
    if not letters:
        raise registry.CannotSplitError(
            f"its equation {call.layer.equation} has no such letter: choose the other way"
        )
    sizes = {one: call.layer.kernel.shape[kernel[one]] for one in letters}
    letter = max(letters, key=lambda one: sizes[one])
    return letter, call.divide(f"rows along {letter}", sizes[letter], _TENSOR)


def _parsed(call: registry.Call) -> _Equation:
    """Read the equation of a layer; dots stand for dimensions in front or behind."""
    layer = call.layer
    inputs, rest = layer.equation.replace(" ", "").split(",")
    kernel, outputs = rest.split("->")
    letters = outputs.replace("...", "")
    bias: dict[str, int] = {}
    if layer.bias is not None:
        first = min(letters.index(one) for one in layer.bias_axes)
        bias = {one: letters.index(one) - first for one in layer.bias_axes}
    return _Equation(
        _places(inputs, len(call.dimensions(call.first))),
        _places(kernel, len(layer.kernel.shape)),
        _places(outputs, len(call.dimensions(call.result))),
        bias,
    )


def _places(letters: str, rank: int) -> dict[str, int]:
    front, _, behind = letters.partition("...")
    places = {one: place for place, one in enumerate(front)}
    return places | {one: rank - len(behind) + place for place, one in enumerate(behind)}
