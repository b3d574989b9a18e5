"""What TensorFlow keeps of a node's forward for its backward, and what that takes besides.

By the type of the node's layer.

Found from the gradients of TensorFlow's operations and the code of Keras' layers; checked against
TensorFlow's own count of bytes in the tests.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfparallel_trainer.engines.split.model import graph, operations
from tfparallel_trainer.engines.split.planning import flops

Shape = flops.Shape

_layers = keras.layers

_NOTHING = operations.layers(
    "Add Average AveragePooling*D Concatenate Cropping*D Dropout Embedding Flatten "
    "GlobalAveragePooling*D Identity InputLayer Permute RepeatVector Reshape Subtract "
    "UpSampling*D ZeroPadding*D"
)
"""Linear in their inputs, without weights that multiply them."""

_OUTPUT = (_layers.ReLU, _layers.Softmax, _layers.Activation)
"""They do not need what they take: what they give is enough, or something made on the way."""

_LINEAR_OPERATIONS = {
    *("Add", "Subtract", "Negative", "Reshape", "Transpose", "GetItem", "Concatenate"),
    *("Stack", "Squeeze", "ExpandDims", "Cast", "Mean", "Sum", "Pad", "cast"),
}

_OF_OUTPUT = {"relu", "tanh", "sigmoid", "softmax", "elu", "selu", "relu6", "leaky_relu"}
"""Activations whose gradient needs their output alone."""

_INNER = {"gelu": 3, "silu": 1, "softplus": 1, "softsign": 1, "mish": 3, "hard_sigmoid": 1}
"""Tensors of the size of the output that other activations keep; those that are not named: 2."""

_STEPS = {_layers.LSTM: 7, _layers.GRU: 6, _layers.SimpleRNN: 1}
"""Vectors that each step of a recurrent layer keeps: its gates, and its states."""

_MAXIMA = operations.layers("MaxPooling*D")
_MAXIMUM = 3.0
"""Elements for each maximum that a backward finds again: itself, and its place in 64 bits."""

_ATTENTIONS = operations.layers("MultiHeadAttention GroupQueryAttention")
_NORMALISATIONS = operations.layers(
    "BatchNormalization GroupNormalization LayerNormalization RMSNormalization"
)
_MASK = 1
"""Bytes of an element of the mask of a dropout."""


def tensors(node: graph.Node) -> Iterator[int]:
    """The tensors of the graph that a node's backward needs."""
    if node.kind is graph.NodeKind.MASK:
        return
    if node.kind is graph.NodeKind.OPERATION:
        if type(node.calls).__name__ not in _LINEAR_OPERATIONS:
            yield from (*node.operands, *node.outputs)
        return
    layer = node.calls
    if not isinstance(layer, (*_OUTPUT, *_NOTHING)):
        yield from node.operands
    by_output = isinstance(layer, (_layers.ReLU, _layers.Softmax, *_MAXIMA))
    if by_output or _activation(layer) in _OF_OUTPUT:
        yield from node.outputs


def inner(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape], width: int) -> float:
    """Bytes of an example that a node keeps besides, by the bytes of an element."""
    layer = node.calls
    elements = math.prod(outputs[0]) if outputs else 0
    if node.kind is not graph.NodeKind.LAYER:
        return 0.0
    for kind, vectors in _STEPS.items():
        if isinstance(layer, kind):
            return float(width * inputs[0][0] * layer.units * vectors)
    if isinstance(layer, _ATTENTIONS):
        return _attention(layer, inputs, width)
    if isinstance(layer, _layers.Attention):  # additive ones are Attention, too
        return float(width * _mixing(layer, inputs))
    if isinstance(layer, _layers.Dropout):
        return float(_MASK * elements) if layer.rate else 0.0
    if isinstance(layer, (_layers.LayerNormalization, _layers.RMSNormalization)):
        return float(width * elements)  # the factor of each element
    activation = _activation(layer)
    if activation is None or activation == "linear" or activation in _OF_OUTPUT:
        return 0.0
    return float(width * elements * _INNER.get(activation, 2))


def working(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Elements of an example that a backward takes besides gradients of the node's tensors."""
    if node.kind is not graph.NodeKind.LAYER:
        return 0.0
    layer = node.calls
    if isinstance(layer, _ATTENTIONS):
        return 2.0 * _pairs(layer, inputs)
    if isinstance(layer, _MAXIMA):
        return _MAXIMUM * sum(math.prod(shape) for shape in outputs)
    in_place = _activation(layer) in (None, "linear", *_OF_OUTPUT)
    if in_place and not isinstance(layer, (*_NORMALISATIONS, *_STEPS)):
        return 0.0
    return float(sum(math.prod(shape) for shape in outputs))


def begins_early(node: graph.Node) -> bool:
    """Whether what `working` counts needs no gradient, as the derivative of an activation."""
    return node.kind is graph.NodeKind.LAYER and not isinstance(
        node.calls, (*_ATTENTIONS, *_NORMALISATIONS, *_STEPS, *_MAXIMA)
    )


def _activation(layer: Any) -> str | None:
    """The name of the activation that is part of a layer."""
    function = getattr(layer, "activation", None)
    return getattr(function, "__name__", None)


def _pairs(layer: Any, inputs: Sequence[Shape]) -> int:
    """Scores: one for each head and pair of places."""
    heads, _ = flops.heads_of(layer)
    return heads * math.prod(flops.queries_and_keys(inputs))


def _attention(layer: Any, inputs: Sequence[Shape], width: int) -> float:
    """Bytes of queries, keys, values and their mixture; of the softmax, and of its dropout."""
    heads, depths = flops.heads_of(layer)
    places = sum(flops.queries_and_keys(inputs))
    of_pair = 2 * width + _MASK if layer.dropout else width
    return float(heads * places * depths * width + of_pair * _pairs(layer, inputs))


def _mixing(layer: Any, inputs: Sequence[Shape]) -> int:
    """Elements of the softmax; and of the sums of each pair where these are what it is of."""
    pairs = math.prod(flops.queries_and_keys(inputs))
    return pairs * (1 + (inputs[0][-1] if isinstance(layer, _layers.AdditiveAttention) else 0))
