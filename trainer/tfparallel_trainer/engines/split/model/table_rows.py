"""Which rows of tables a model looks up whatever the examples are, such as those of positions."""

from collections.abc import Iterable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.engines.split.model import execution, graph
from tfparallel_trainer.objective import lookups


def rows(model: graph.Graph, nodes: Iterable[graph.Node]) -> dict[str, frozenset[lookups.Rows]]:
    """Return the rows that nodes look up whatever the examples are, by the keys of tables.

    Ranks trace steps for batches of known size, in which the rows of a batch may be known too. So
    each node that may look rows up is traced alone, for batches of unknown size.

    Args:
        model: the graph.
        nodes: some of its nodes.
    """
    rows_by_key: dict[str, frozenset[lookups.Rows]] = {}
    for node in nodes:
        if _may_look_up(node):
            for key, one in _of_node(model, node).items():
                rows_by_key[key] = rows_by_key.get(key, frozenset()) | one
    return rows_by_key


def _may_look_up(node: graph.Node) -> bool:
    """Whether a node reads weights in another way than Keras' layers that have no table."""
    if node.kind is not graph.Kind.LAYER or not node.variables:
        return False
    layers = list(node.calls._flatten_layers())
    return any(
        isinstance(layer, keras.layers.Embedding) or not type(layer).__module__.startswith("keras.")
        for layer in layers
    )


def _of_node(model: graph.Graph, node: graph.Node) -> dict[str, frozenset[lookups.Rows]]:
    trained = [key for key in node.variables if model.variables[key].trainable]
    known: dict[str, frozenset[lookups.Rows]] = {}

    def call(tensors: dict[int, Any], variables: dict[str, Any]) -> None:
        with tf.GradientTape() as tape:
            tape.watch([variables[key] for key in trained])
            part = execution.run_nodes(model, [node], tensors, variables, training=True)
            outputs = [part.tensors[number] for number in node.outputs]
            targets = [one for one in outputs if one is not None and one.dtype.is_floating]
        gradients = tape.gradient(targets, [variables[key] for key in trained])
        for key, gradient in zip(trained, gradients, strict=True):
            if isinstance(gradient, tf.IndexedSlices):
                sources = lookups.of(gradient)
                known[key] = frozenset(one.rows for one in sources if one.rows is not None)

    tensors = {number: _spec(model.tensors[number]) for number in node.inputs}
    variables = {
        key: tf.TensorSpec(model.variables[key].shape, model.variables[key].dtype)
        for key in node.variables
    }
    tf.function(call, autograph=False).get_concrete_function(tensors, variables)
    return known


def _spec(tensor: graph.Tensor) -> tf.TensorSpec:
    return tf.TensorSpec(tensor.shape, tensor.dtype)
