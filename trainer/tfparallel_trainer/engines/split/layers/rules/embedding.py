"""Embedding: a table [rows, features], by rows (vocabulary) or by features."""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout
from tfparallel_trainer.engines.split.layers.rules import dense, registry

_TENSOR = shape.Axis.TENSOR


class Vocabulary(registry.Rule):
    """Each rank has some of the rows and looks them up; the others' are zeros in a sum."""

    way = "vocabulary"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the rows."""
        dense.check(call.layer)
        rows = call.divide("rows", call.layer.input_dim, _TENSOR)
        output_layout = call.whole(call.result)
        return registry.Split(
            variables={call.key(call.layer.embeddings): registry.Shard(layout.cut(2, 0, rows))},
            costs=dense.summing(call, call.result, output_layout),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Look up the rank's rows, and add up.

        Only indices of the rank's rows reach the table, so that its gradient names no others.
        Optimizers do not treat a row with a gradient of zero as one without.
        """
        layer, group = local.layer, local.groups[_TENSOR]
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
        return [adjoint.total(group, tf.ensure_shape(spread, [*indices.shape, table.shape[1]]))]


class Features(registry.Rule):
    """Each rank has some of the features of all rows."""

    way = "features"
    axes = (_TENSOR,)

    def split(self, call: registry.Call) -> registry.Split:
        """Cut the features."""
        dense.check(call.layer)
        features = call.divide("features", call.layer.output_dim, _TENSOR)
        return registry.Split(
            gives={call.result: call.whole(call.result).put(-1, features)},
            variables={call.key(call.layer.embeddings): registry.Shard(layout.cut(2, 1, features))},
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Look up the rank's features."""
        layer = local.layer
        table = local.variables[local.key(layer.embeddings)]
        vectors = keras.ops.take(table, _indices(local.first), axis=0)
        return [keras.ops.cast(vectors, layer.compute_dtype)]


RULES: dict[type, tuple[registry.Rule, ...]] = {keras.layers.Embedding: (Features(), Vocabulary())}


def _indices(tensor: Any) -> Any:
    return tensor if tensor.dtype in (tf.int32, tf.int64) else tf.cast(tensor, tf.int32)
