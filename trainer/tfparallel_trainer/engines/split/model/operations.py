"""Which operations of Keras work on each element by itself, and which calls run a user's code."""

import keras

from tfparallel_trainer.engines.split.model import graph

_NAMES = """
absolute add arccos arcsin arctan arctan2 cast ceil celu clip cos cosh divide dividenonan elu equal
erf exp expm1 floor gelu greater greaterequal hardsigmoid hardsilu hardtanh isfinite isinf isnan
leakyrelu less lessequal log log10 log1p log2 logaddexp logicaland logicalnot logicalor logsigmoid
maximum minimum mod multiply negative notequal power reciprocal relu relu6 round rsqrt selu sigmoid
sign silu sin sinh softplus softsign sqrt square stopgradient subtract tan tanh truedivide where
"""
ELEMENTWISE = frozenset(_NAMES.split())
"""By name, as `name_of` returns it."""


def name_of(calls: object) -> str:
    """The name of an operation of Keras, such as add; empty when it is of someone else.

    Keras' classes of operations are named as the functions, but for capitals and underscores.
    """
    kind = calls if callable(calls) and hasattr(calls, "__name__") else type(calls)
    if not kind.__module__.startswith("keras."):
        return ""
    return str(kind.__name__).lower().replace("_", "")


def runs_code_of_user(node: graph.Node) -> bool:
    """Whether a node calls a layer that is not Keras' own, or a function within one."""
    if node.kind is graph.Kind.OPERATION:
        return False
    return any(
        isinstance(layer, keras.layers.Lambda) or not type(layer).__module__.startswith("keras.")
        for layer in node.calls._flatten_layers()
    )
