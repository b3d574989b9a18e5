"""Floating point operations of a node for one example, forward, by the type of its layer.

A multiplication and an addition count as two. Layers without a formula count each weight matrix
once for each place of their input, which is right for most layers that people write.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from tfparallel_trainer.engines.split.model import graph, operations

Shape = tuple[int, ...]
"""Of a tensor for one example, without the batch."""

_Formula = Callable[[Any, Sequence[Shape], Sequence[Shape]], float]

_TRANSPOSED = operations.layers("Conv*DTranspose")
_PER_ELEMENT = 1.0
_PER_ELEMENT_NORMALISED = 8.0
"""Mean, variance, and an affine map of each element."""
_PER_ELEMENT_SOFTMAX = 5.0


def count_flops(node: graph.Node, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Count the operations of a node."""
    if node.kind is not graph.NodeKind.LAYER:
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


def queries_and_keys(inputs: Sequence[Shape]) -> tuple[int, int]:
    """The places of the queries, and of the keys, that attention takes."""
    return _places(inputs[0]), _places(inputs[min(1, len(inputs) - 1)])


def heads_of(layer: Any) -> tuple[int, int]:
    """How many heads attention has, and the features of a key and a value of one."""
    heads = layer.num_heads if hasattr(layer, "num_heads") else layer.num_query_heads
    depth = layer.key_dim if hasattr(layer, "key_dim") else layer.head_dim
    return heads, depth + (getattr(layer, "value_dim", None) or depth)


def _by_weights(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    places = max((_places(shape) for shape in inputs), default=1)
    return 2.0 * places * _matrices(layer) + _PER_ELEMENT * elements(outputs)


def _convolution(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Each place of the output takes the whole kernel, of a transposed one each of the input."""
    [shape] = inputs if isinstance(layer, _TRANSPOSED) else outputs
    channels_first = layer.data_format == "channels_first"
    places = math.prod(shape[1:] if channels_first else shape[:-1])
    return 2.0 * places * _matrices(layer) + _PER_ELEMENT * elements(outputs)


def _pooling(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    return float(math.prod(layer.pool_size) * elements(outputs))


def _each(operations_of_element: float) -> _Formula:
    """What counts so many operations for each element of the output."""
    return lambda layer, inputs, outputs: operations_of_element * elements(outputs)


def _attention(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Projections of queries, keys and values; scores and mixtures of every pair of places."""
    queries, keys = queries_and_keys(inputs)
    projections = float(_matrices(layer) * (queries + keys))  # half of the matrices each
    heads, depths = heads_of(layer)
    return float(projections + heads * queries * keys * (2.0 * depths + _PER_ELEMENT_SOFTMAX))


def _dots(layer: Any, inputs: Sequence[Shape], outputs: Sequence[Shape]) -> float:
    """Attention without weights: scores and mixtures of every pair of places."""
    queries, keys = queries_and_keys(inputs)
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


_BY_NAMES: dict[str, _Formula] = {
    "Conv*D DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D": _convolution,
    "Conv*DTranspose": _convolution,
    "MaxPooling*D AveragePooling*D": _pooling,
    "BatchNormalization LayerNormalization GroupNormalization": _each(_PER_ELEMENT_NORMALISED),
    "RMSNormalization UnitNormalization": _each(_PER_ELEMENT_NORMALISED),
    "Softmax": _each(_PER_ELEMENT_SOFTMAX),
    "Embedding": _each(1.0),
    "MultiHeadAttention GroupQueryAttention": _attention,
    "Attention": _dots,
}
_FORMULAS = [(operations.layers(names), formula) for names, formula in _BY_NAMES.items()]
