"""Floating point operations of a node for one example, forward, by the type of its layer.

A multiplication and an addition count as two. Layers without a formula count each weight matrix
once for each place of their input, which is right for most layers that people write.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras

from tfparallel_trainer.engines.split.model import graph

Shape = tuple[int, ...]

_PER_ELEMENT = 1.0
_PER_ELEMENT_NORMALISED = 8.0
"""Mean, variance, and an affine map of each element."""
_PER_ELEMENT_SOFTMAX = 5.0


def of(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Count the operations of a node.

    Args:
        inputs: shapes of its tensors for one example, without the batch, in order.
        outputs: the same of what it gives.
    """
    if node.kind is not graph.Kind.LAYER:
        return _operation(node, inputs, outputs)
    layer = node.calls
    for kinds, formula in _FORMULAS:
        if isinstance(layer, kinds):
            return formula(layer, inputs, outputs)
    return _by_weights(layer, inputs, outputs)


def elements(shapes: Sequence[Shape]) -> int:
    """Number of elements of some tensors."""
    return sum(math.prod(shape) for shape in shapes)


def _matrices(layer: Any) -> int:
    """Elements of the weights that are multiplied with tensors."""
    return sum(math.prod(weight.shape) for weight in layer.weights if len(weight.shape) > 1)


def _places(shape: Shape) -> int:
    """How many vectors of features a tensor has."""
    return math.prod(shape[:-1])


def _by_weights(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    places = max((_places(shape) for shape in inputs), default=1)
    return 2.0 * places * _matrices(layer) + _PER_ELEMENT * elements(outputs)


def _convolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Each place of the output takes the whole kernel, of a transposed one each of the input."""
    transposed = (keras.layers.Conv1DTranspose, keras.layers.Conv2DTranspose)
    is_transposed = isinstance(layer, (*transposed, keras.layers.Conv3DTranspose))
    [shape] = inputs if is_transposed else outputs
    channels_first = layer.data_format == "channels_first"
    places = math.prod(shape[1:] if channels_first else shape[:-1])
    return 2.0 * places * _matrices(layer) + _PER_ELEMENT * elements(outputs)


def _pooling(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return float(math.prod(layer.pool_size) * elements(outputs))


def _normalisation(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return _PER_ELEMENT_NORMALISED * elements(outputs)


def _softmax(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return _PER_ELEMENT_SOFTMAX * elements(outputs)


def _lookup(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return float(elements(outputs))


def _attention(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Projections of queries, keys and values; scores and mixtures of every pair of places."""
    query, key = inputs[0], inputs[min(1, len(inputs) - 1)]
    queries, keys = _places(query), _places(key)
    projections = float(_matrices(layer) * (queries + keys))  # half of the matrices each
    heads = layer.num_heads if hasattr(layer, "num_heads") else layer.num_query_heads
    value = getattr(layer, "value_dim", None)
    depth = layer.key_dim if hasattr(layer, "key_dim") else layer.head_dim
    pairs = heads * queries * keys
    return float(projections + pairs * (2.0 * (depth + (value or depth)) + _PER_ELEMENT_SOFTMAX))


def _dots(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Attention without weights: scores and mixtures of every pair of places."""
    queries, keys = _places(inputs[0]), _places(inputs[min(1, len(inputs) - 1)])
    return queries * keys * (4.0 * inputs[0][-1] + _PER_ELEMENT_SOFTMAX)


def _operation(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    name = type(node.calls).__name__
    if name == "Matmul" and len(inputs) == 2:
        return 2.0 * inputs[0][-1] * elements(outputs)
    if name == "Einsum":
        return 2.0 * _einsum(node.calls.subscripts, inputs)
    return _PER_ELEMENT * elements(outputs)


def _einsum(equation: str, inputs: Sequence[Shape]) -> float:
    """Product of all dimensions that letters name; the batch counts as one."""
    sizes: dict[str, int] = {}
    for letters, shape in zip(equation.split("->")[0].split(","), inputs, strict=False):
        named = letters.strip().replace("...", "")
        sizes |= dict(zip(reversed(named), reversed(shape), strict=False))
    return float(math.prod(sizes.values()))


_layers = keras.layers
_Formula = Callable[[Any, Sequence[Shape], Sequence[Shape]], float]
_FORMULAS: tuple[tuple[tuple[type, ...], _Formula], ...] = (
    (
        (
            _layers.Conv1D,
            _layers.Conv2D,
            _layers.Conv3D,
            _layers.DepthwiseConv1D,
            _layers.DepthwiseConv2D,
            _layers.SeparableConv1D,
            _layers.SeparableConv2D,
            _layers.Conv1DTranspose,
            _layers.Conv2DTranspose,
            _layers.Conv3DTranspose,
        ),
        _convolution,
    ),
    (
        (
            _layers.MaxPooling1D,
            _layers.MaxPooling2D,
            _layers.MaxPooling3D,
            _layers.AveragePooling1D,
            _layers.AveragePooling2D,
            _layers.AveragePooling3D,
        ),
        _pooling,
    ),
    (
        (
            _layers.BatchNormalization,
            _layers.LayerNormalization,
            _layers.GroupNormalization,
            _layers.RMSNormalization,
            _layers.UnitNormalization,
        ),
        _normalisation,
    ),
    ((_layers.Softmax,), _softmax),
    ((_layers.Embedding,), _lookup),
    ((_layers.MultiHeadAttention, _layers.GroupQueryAttention), _attention),
    ((_layers.Attention,), _dots),
)
