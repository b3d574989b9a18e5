"""Attention by heads: each rank projects, attends and projects back with some of the heads.

The projections back are summands of the output. Kernels as Keras has them: [features, heads, size]
for query, key and value, [heads, size, features] for the output.
"""

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout, traffic
from tfparallel_trainer.engines.split.layers.rules import calling, dense, dropout, registry

_TENSOR = shape.Axis.TENSOR


class Heads(registry.Rule):
    """Each rank computes some of the heads; keys and values that queries share stay with them."""

    way = "heads"
    axes = (_TENSOR,)

    def __init__(self, heads: Callable[[Any], tuple[int, int]], names: tuple[str, str]) -> None:
        self._heads = heads
        """Of a layer: how many it has for queries, and for keys and values."""
        self._names = names
        """What these are called in its configuration."""

    def split(self, call: registry.Call) -> registry.Split:
        layer = call.layer
        dense.check(layer)
        if layer.get_config()["activity_regularizer"]:
            raise registry.CannotSplitError(
                "it has an activity_regularizer: do without, or replicate the layer"
            )
        queries, keys = self._heads(layer)
        cut = call.divide("heads for keys and values", keys, _TENSOR)
        both = {queries: cut.times(queries // keys), keys: cut}
        variables: dict[str, registry.Shard] = {}
        inner, output = _weights(layer)
        for one in inner:
            heads = len(one.shape) - 2
            lies = layout.cut(len(one.shape), heads, both[one.shape[heads]])
            variables[call.key(one)] = registry.Shard(lies)
        variables[call.key(output)] = registry.Shard(
            layout.cut(len(output.shape), 0, both[queries])
        )
        gives = {call.result: call.whole(call.result)}
        for scores in call.node.outputs[1:]:
            if len(call.dimensions(scores)) != 4:
                raise registry.CannotSplitError("it gives the scores of more than one dimension")
            gives[scores] = layout.cut(4, 1, both[queries])
        return registry.Split(
            gives=gives,
            variables=variables,
            costs=(*_spreading(call), *dense.summing(call)),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer, group = local.layer, local.groups[_TENSOR]
        _, output = _weights(layer)
        heads = local.split.variables[local.key(output)].layout
        if local.same_dropout and local.training and layer.get_config()["dropout"]:
            return self._as_whole(local, heads)
        queries, keys = self._heads(layer)
        cut = heads.cuts[0]
        local_queries = cut.sizes[group.index] if cut else queries
        config = {self._names[0]: local_queries, self._names[1]: local_queries * keys // queries}
        variables = dict(local.variables)
        bias = layer.weights[-1] if layer.get_config()["use_bias"] else None
        if bias is not None:  # the sum has it once
            variables[local.key(bias)] = keras.ops.zeros_like(variables[local.key(bias)])
        tensors = dict(local.tensors)
        for one in local.node.operands:
            tensors[one] = adjoint.spread(group, tensors[one])
        spread = dataclasses.replace(local, tensors=tensors)
        summand, *scores = calling.smaller(
            spread, config, variables, dropout.seed_offset(local, heads)
        )
        result = adjoint.total(group, summand)
        if bias is not None:
            result = result + keras.ops.cast(local.value(bias), result.dtype)
        return [result, *scores]

    def _as_whole(self, local: registry.Local, heads: layout.Layout) -> Sequence[Any]:
        """Attend with all heads on every rank, so that dropout is that of the whole layer."""
        group = local.groups[_TENSOR]
        variables = dict(local.variables)
        for key, shard in local.split.variables.items():
            for dimension, cut in enumerate(shard.layout.cuts):
                if cut is not None:
                    variables[key] = adjoint.gather(group, variables[key], dimension, cut)
        result, *scores = calling.smaller(local, {}, variables)
        cut = heads.cuts[0]
        return [result, *(adjoint.take(group, one, 1, cut) for one in scores if cut)]


RULES: dict[type, tuple[registry.Rule, ...]] = {
    keras.layers.MultiHeadAttention: (
        Heads(lambda layer: (layer.num_heads, layer.num_heads), ("num_heads", "num_heads")),
    ),
    keras.layers.GroupQueryAttention: (
        Heads(
            lambda layer: (layer.num_query_heads, layer.num_key_value_heads),
            ("num_query_heads", "num_key_value_heads"),
        ),
    ),
}


def _weights(layer: Any) -> tuple[list[Any], Any]:
    """The weights of the projections to heads, and the kernel of the one back."""
    weights = list(layer.weights)
    if layer.get_config()["use_bias"]:
        weights.pop()
    return weights[:-1], weights[-1]


def _spreading(call: registry.Call) -> Iterator[traffic.Traffic]:
    for one in call.node.operands:
        tensor = call.model.tensors[one]
        yield from call.sends(
            traffic.Kind.SUM, _TENSOR, call.backward(one), tensor.shape, tensor.dtype
        )
