"""Attention by heads: each rank computes the projections and the attention of some of the heads.

The ranks' output projections are summands of the output. Kernels as Keras has them: [features,
heads, size] for query, key and value, [heads, size, features] for the output.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import dense, local_layers, registry

_TENSOR = shape.Axis.TENSOR


class HeadsRule(registry.Rule):
    """Each rank computes some of the heads, with the keys and values that their queries share."""

    sharding = "heads"
    axes = (_TENSOR,)

    def __init__(self, *names: str) -> None:
        """Take the names of a layer's numbers of heads, for queries and for keys and values."""
        self._names = names

    def split(self, call: registry.Call) -> registry.Split:
        layer, tensors = call.layer, call.model.tensors
        dense.check(layer)
        if layer.get_config()["activity_regularizer"]:
            raise registry.CannotSplitError(
                "it has an activity_regularizer: do without, or replicate the layer"
            )
        queries, keys = self._heads(layer)
        cut = call.divide("heads for keys and values", keys, _TENSOR)
        both = {queries: cut.times(queries // keys), keys: cut}
        inner, output = _weights(layer)
        variables = call.shards(
            *(
                (weight, layout.cut(len(weight.shape), -2, both[weight.shape[-2]]))
                for weight in inner
            ),
            (output, layout.cut(len(output.shape), 0, both[queries])),
        )
        gives = {call.result: call.whole(call.result)}
        for scores in call.node.outputs[1:]:
            if len(call.dimensions(scores)) != 4:
                raise registry.CannotSplitError("it attends over more than one dimension")
            gives[scores] = layout.cut(4, 1, both[queries])
        copy_costs = (
            cost
            for number in call.node.operands
            for cost in call.sends(
                communication.CollectiveKind.SUM,
                _TENSOR,
                call.backward(number),
                tensors[number].shape,
                tensors[number].dtype,
            )
        )
        return registry.Split(
            gives=gives, variables=variables, costs=(*copy_costs, *dense.reduce_cost(call))
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer, group = local.layer, local.groups[_TENSOR]
        config = layer.get_config()
        if local.same_dropout and local.training and config["dropout"]:
            return self._as_whole(local)
        _, output = _weights(layer)
        heads = local.split.variables[local.key(output)].layout
        queries, keys = self._heads(layer)
        local_queries = local.variables[local.key(output)].shape[0]
        local_heads = (local_queries, local_queries * keys // queries)
        variables = dict(local.variables)
        bias = layer.weights[-1] if config["use_bias"] else None
        if bias is not None:  # only one rank adds it to the sum
            variables[local.key(bias)] = keras.ops.zeros_like(variables[local.key(bias)])
        tensors = dict(local.tensors)
        for number in local.node.operands:
            tensors[number] = adjoint.copy_to_group(group, tensors[number])
        summand, *scores = local_layers.smaller(
            dataclasses.replace(local, tensors=tensors),
            dict(zip(self._names, local_heads, strict=True)),
            variables,
            heads,
        )
        result = adjoint.reduce_from_group(group, summand)
        if bias is not None:
            result = result + keras.ops.cast(local.value(bias), result.dtype)
        return [result, *scores]

    def _as_whole(self, local: registry.Local) -> Sequence[Any]:
        """Attend with all heads on every rank, so that dropout is that of the unsplit layer."""
        variables = dict(local.variables)
        for key, shard in local.split.variables.items():
            whole = layout.whole(len(shard.layout.cuts))
            variables[key] = adjoint.reshard(variables[key], shard.layout, whole, local.groups)
        result, *scores = local_layers.smaller(local, {}, variables)
        layouts = [local.split.gives[number] for number in local.node.outputs[1:]]
        return [
            result,
            *(
                adjoint.reshard(score, layout.whole(4), tensor_layout, local.groups)
                for score, tensor_layout in zip(scores, layouts, strict=True)
            ),
        ]

    def _heads(self, layer: Any) -> tuple[int, int]:
        queries, keys = (getattr(layer, name) for name in self._names)
        return queries, keys


RULES: registry.Rules = {
    "MultiHeadAttention": (HeadsRule("num_heads", "num_heads"),),
    "GroupQueryAttention": (HeadsRule("num_query_heads", "num_key_value_heads"),),
}


def _weights(layer: Any) -> tuple[list[Any], Any]:
    """The weights of the input projections, and the kernel of the output projection."""
    weights = list(layer.weights)
    if layer.get_config()["use_bias"]:
        weights.pop()
    return weights[:-1], weights[-1]
