"""Classifies Keras' layers, operations and activations: by element, by channel, or user code."""

from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.engines.split.model import graph

_NAMES = """
absolute add arccos arcsin arctan arctan2 cast ceil celu clip cos cosh divide dividenonan elu equal
erf exp expm1 exponential floor gelu greater greaterequal hardshrink hardsigmoid hardsilu hardtanh
isfinite isinf isnan leakyrelu less lessequal linear log log10 log1p log2 logaddexp logicaland
logicalnot logicalor logsigmoid maximum minimum mish mod multiply negative notequal power reciprocal
relu relu6 round rsqrt selu sigmoid sign silu sin sinh softplus softshrink softsign sparseplus
sparsesigmoid sqrt square squareplus stopgradient subtract tan tanh tanhshrink threshold truedivide
where
"""
ELEMENTWISE = frozenset(_NAMES.split())
"""Operations and activations that work on each element by itself, as `name_of` returns them."""

_ALONG_CHANNELS = (keras.activations.softmax, keras.activations.log_softmax)


def name_of(calls: object) -> str:
    """The name of an operation of Keras, such as add; empty if it is not Keras' own.

    Keras' classes of operations have the names of the functions, except for capitals and
    underscores.
    """
    kind = calls if callable(calls) and hasattr(calls, "__name__") else type(calls)
    if not kind.__module__.startswith("keras."):
        return ""
    return str(kind.__name__).lower().replace("_", "")


def layers(names: str) -> tuple[type, ...]:
    """Keras' classes of layers by their names; Conv*D stands for those of 1, 2 and 3 dimensions."""
    return tuple(
        getattr(keras.layers, name.replace("*", number))
        for name in names.split()
        for number in ("123" if "*" in name else "1")
    )


def axes(axis: int | Sequence[int], rank: int) -> tuple[int, ...]:
    """One axis or several of a tensor of `rank` dimensions, counted from the first."""
    return tuple(axis_number % rank for axis_number in ((axis,) if isinstance(axis, int) else axis))


def is_of_keras(layer: object) -> bool:
    """Whether a layer is Keras' own."""
    return type(layer).__module__.startswith("keras.")


def runs_code_of_user(node: graph.Node) -> bool:
    """Whether a node calls a layer that is not Keras' own, or a function within one."""
    return node.kind is not graph.NodeKind.OPERATION and any(
        isinstance(layer, keras.layers.Lambda) or not is_of_keras(layer)
        for layer in node.calls._flatten_layers()
    )


def is_elementwise(activation: Any) -> bool:
    """Whether a function, as an attribute of a layer, is known to be elementwise;

    None: no function.
    """
    return activation is None or name_of(activation) in ELEMENTWISE


def is_along_channels(activation: Any) -> bool:
    """Whether a function is known to need all of the last dimension, and of no other."""
    return any(activation is activation_function for activation_function in _ALONG_CHANNELS)


def is_by_place(activation: Any) -> bool:
    """Whether a function is known to work on each position by itself, with all channels."""
    return is_elementwise(activation) or is_along_channels(activation)


def label(activation: Any) -> str:
    """The name of an activation for people."""
    return str(getattr(activation, "__name__", type(activation).__name__))


def apply(activation: Any, tensor: Any) -> Any:
    """Apply a layer's activation to a tensor."""
    return tensor if activation is None else activation(tensor)
