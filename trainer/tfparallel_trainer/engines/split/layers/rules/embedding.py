"""Embedding: a table [rows, features], by rows (vocabulary) or by features.

ReversibleEmbedding also multiplies by its table: by rows as Dense by column, by features as Dense
by row.
"""

import inspect
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout
from tfparallel_trainer.engines.split.layers.rules import dense, registry
from tfparallel_trainer.engines.split.model import graph, operations

_TENSOR = shape.Axis.TENSOR


class VocabularyRule(registry.Rule):
    """Each rank has some of the rows, looks these up, and adds zeros for other rows to a sum."""

    sharding = "vocabulary"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        _check(call.layer)
        rows = call.divide("rows", call.layer.input_dim, _TENSOR)
        variables = call.shards((call.layer.embeddings, layout.cut(2, 0, rows)))
        if not _is_reversed(call.node):
            return call.split(variables=variables, costs=dense.reduce_cost(call))
        costs = dense.copy_cost(call, call.whole(call.first))
        return call.split(None, call.whole(call.result).put(-1, rows), variables, costs)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Look up the rank's rows, and add up; or return the logits of these rows.

        Only indices of the rank's rows reach the table, so that its gradient names no others.
        Optimizers do not treat a row with a gradient of zero as one without.
        """
        layer, group = local.layer, local.groups[_TENSOR]
        if _is_reversed(local.node):
            return [_capped(layer, _product(local, adjoint.copy_to_group(group, local.first)))]
        table = local.variables[local.key(layer.embeddings)]
        cut = local.split.variables[local.key(layer.embeddings)].layout.cuts[0]
        begin = sum(cut.sizes[: group.index]) if cut else 0
        indices = _indices(local.first)
        local_indices = tf.reshape(indices, [-1]) - begin
        places = tf.where((local_indices >= 0) & (local_indices < table.shape[0]))
        vectors = tf.cast(
            tf.gather(table, tf.gather_nd(local_indices, places)), layer.compute_dtype
        )
        flat = tf.scatter_nd(
            places, vectors, tf.stack([tf.size(local_indices, places.dtype), table.shape[1]])
        )
        spread = tf.reshape(flat, tf.concat([tf.shape(indices), [table.shape[1]]], 0))
        return [
            adjoint.reduce_from_group(
                group, tf.ensure_shape(spread, [*indices.shape, table.shape[1]])
            )
        ]


class FeaturesRule(registry.Rule):
    """Each rank has some of the features of all rows."""

    sharding = "features"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        _check(call.layer)
        features = call.divide("features", call.layer.output_dim, _TENSOR)
        variables = call.shards((call.layer.embeddings, layout.cut(2, 1, features)))
        if not _is_reversed(call.node):
            return call.split(None, call.whole(call.result).put(-1, features), variables)
        input_layout = call.whole(call.first).put(-1, features)
        return call.split(input_layout, None, variables, dense.reduce_cost(call))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        layer = local.layer
        if _is_reversed(local.node):  # a summand of all logits
            summand = _product(local, local.first)
            return [_capped(layer, adjoint.reduce_from_group(local.groups[_TENSOR], summand))]
        table = local.variables[local.key(layer.embeddings)]
        vectors = keras.ops.take(table, _indices(local.first), axis=0)
        return [keras.ops.cast(vectors, layer.compute_dtype)]


_TABLES = "Embedding ReversibleEmbedding"

RULES: registry.Rules = {_TABLES: (FeaturesRule(), VocabularyRule())}


def kind_of(layer: type) -> type:
    """Return the class whose rules apply: the base class of a layer that computes as its base."""
    for table in operations.layers(_TABLES):
        methods = ((getattr(kind, "build", 0), getattr(kind, "call", 0)) for kind in (layer, table))
        if issubclass(layer, table) and len(set(methods)) == 1:
            return table
    return layer


def _check(layer: Any) -> None:
    dense.check(layer)
    if isinstance(layer, keras.layers.ReversibleEmbedding) and (
        not layer.tie_weights or layer.mask_zero
    ):
        raise registry.CannotSplitError(
            "it has a second table, or hangs masks on what it gives: let tie_weights be True and "
            "mask_zero False, or replicate the layer"
        )


def _is_reversed(node: graph.Node) -> bool:
    if not isinstance(node.calls, keras.layers.ReversibleEmbedding):
        return False
    call = inspect.signature(node.calls.call).bind(*node.arguments, **node.keywords)
    return bool(call.arguments.get("reverse"))


def _product(local: registry.Local, states: Any) -> Any:
    """Multiply states by the rank's part of the table, in the types of the layer."""
    layer = local.layer
    table = keras.ops.transpose(local.variables[local.key(layer.embeddings)])
    if layer.reverse_dtype is not None:
        states, table = (keras.ops.cast(weight, layer.reverse_dtype) for weight in (states, table))
    return keras.ops.matmul(states, table)


def _capped(layer: Any, logits: Any) -> Any:
    cap = layer.logit_soft_cap
    return logits if cap is None else keras.ops.tanh(logits / cap) * cap


def _indices(tensor: Any) -> Any:
    return tensor if tensor.dtype in (tf.int32, tf.int64) else tf.cast(tensor, tf.int32)
