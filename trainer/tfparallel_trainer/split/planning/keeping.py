"""What TensorFlow keeps of a node's forward for its backward, by the type of its layer.

Found from the gradients of TensorFlow's operations and the code of Keras' layers; checked against
TensorFlow's own count of bytes in the tests.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfparallel_trainer.split.model import graph

Shape = tuple[int, ...]

_layers = keras.layers

_NOTHING = (
    _layers.Add,
    _layers.Average,
    _layers.AveragePooling1D,
    _layers.AveragePooling2D,
    _layers.AveragePooling3D,
    _layers.Concatenate,
    _layers.Cropping1D,
    _layers.Cropping2D,
    _layers.Cropping3D,
    _layers.Dropout,
    _layers.Embedding,
    _layers.Flatten,
    _layers.GlobalAveragePooling1D,
    _layers.GlobalAveragePooling2D,
    _layers.GlobalAveragePooling3D,
    _layers.Identity,
    _layers.InputLayer,
    _layers.Permute,
    _layers.RepeatVector,
    _layers.Reshape,
    _layers.Subtract,
    _layers.UpSampling1D,
    _layers.UpSampling2D,
    _layers.UpSampling3D,
    _layers.ZeroPadding1D,
    _layers.ZeroPadding2D,
    _layers.ZeroPadding3D,
)
"""Linear in their inputs, without weights that multiply them."""

_OUTPUT = (_layers.ReLU, _layers.Softmax, _layers.Activation)
"""The gradient of the usual activations is a function of what they gave."""

_LINEAR_OPERATIONS = {
    *("Add", "Subtract", "Negative", "Reshape", "Transpose", "GetItem", "Concatenate"),
    *("Stack", "Squeeze", "ExpandDims", "Cast", "Mean", "Sum", "Pad", "cast"),
}

_OF_OUTPUT = {"relu", "tanh", "sigmoid", "softmax", "elu", "selu", "relu6", "leaky_relu"}
"""Activations whose gradient needs their output alone."""

_GATES = {_layers.LSTM: 4, _layers.GRU: 3, _layers.SimpleRNN: 1}


def tensors(node: graph.Node) -> Iterator[int]:
    """The tensors of the graph that a node's backward needs."""
    taken = [one for one in node.inputs if one not in node.masks.values()]
    if node.kind is graph.Kind.MASK:
        return
    if node.kind is graph.Kind.OPERATION:
        if type(node.calls).__name__ not in _LINEAR_OPERATIONS:
            yield from (*taken, *node.outputs)
        return
    layer = node.calls
    if isinstance(layer, _OUTPUT):
        yield from node.outputs
    elif not isinstance(layer, _NOTHING):
        yield from taken
    if _activation(layer) in _OF_OUTPUT or isinstance(layer, _MAXIMA):
        yield from node.outputs


_MAXIMA = (_layers.MaxPooling1D, _layers.MaxPooling2D, _layers.MaxPooling3D)


def inner(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Elements of an example that a node keeps besides, for shapes without the batch."""
    layer = node.calls
    given = sum(math.prod(shape) for shape in outputs)
    if node.kind is not graph.Kind.LAYER:
        return 0.0
    for kind, gates in _GATES.items():
        if isinstance(layer, kind):
            return _recurrent(layer, gates, inputs[0])
    if isinstance(layer, (_layers.MultiHeadAttention, _layers.GroupQueryAttention)):
        return _attention(layer, inputs)
    if isinstance(layer, _layers.Dropout):
        return float(given) if layer.rate else 0.0  # the mask, as numbers
    if isinstance(layer, (_layers.LayerNormalization, _layers.RMSNormalization)):
        return 2.0 * given  # centred, and scaled
    activation = _activation(layer)
    if activation in (None, "linear", *_OF_OUTPUT):
        return 0.0
    return 2.0 * given  # what went into the activation, and a part of it


def _activation(layer: Any) -> str | None:
    """The name of the activation that is part of a layer."""
    function = getattr(layer, "activation", None)
    return getattr(function, "__name__", None)


def _recurrent(layer: Any, gates: int, given: Shape) -> float:
    """Each step keeps its gates, before and after they are squashed, and its states."""
    steps = given[0]
    return float(steps * layer.units * (2 * gates + 3))


def _attention(layer: Any, inputs: Sequence[Shape]) -> float:
    """Queries, keys, values and their mixture; scores and softmax for each pair of places."""
    asked, given = inputs[0], inputs[min(1, len(inputs) - 1)]
    queries, keys = math.prod(asked[:-1]), math.prod(given[:-1])
    heads = layer.num_heads if hasattr(layer, "num_heads") else layer.num_query_heads
    depth = layer.key_dim if hasattr(layer, "key_dim") else layer.head_dim
    value = getattr(layer, "value_dim", None) or depth
    copies = 2 + (2 if layer.dropout else 0)
    return float(
        heads * (depth * (2 * queries + 2 * keys) + value * 2 * (keys + queries))
        + copies * heads * queries * keys
    )
