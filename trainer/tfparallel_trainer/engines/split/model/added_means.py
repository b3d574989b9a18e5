"""Refuses layers that add to the loss what is no mean over the examples of a batch.

A mesh divides a batch over its data axis and into microbatches. What layers add to the loss of a
part is taken as a mean over its examples. So each layer of the user's that adds something is tried
with numbers: for a batch it has to add the mean of what it adds for the halves.
"""

from collections.abc import Sequence

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import execution, graph

_HALF = 2
"""Examples of half of a batch."""
_ROUNDING = 1e-3
"""Relative to what is added."""


def check(model: graph.Graph) -> None:
    """See that what layers add to the loss is a mean over examples.

    Raises:
        UserCodeError: names a layer that adds something else.
    """
    for node in model.nodes:
        if node.kind is graph.Kind.LAYER and not _adds_mean(model, node):
            raise errors.UserCodeError(
                f"What {node.name} adds by add_loss is no mean over examples, and a mesh divides "
                "the batch over its data axis and into microbatches. Let it be a mean, or let "
                "mesh.data and mesh.microbatches be 1."
            )


def _adds_mean(model: graph.Graph, node: graph.Node) -> bool:
    """Whether what a layer adds to the loss of a batch is the mean of what it adds to the halves.

    That of Keras' own layers is, but for their regularizers. What is random is taken for a mean.
    """
    regularizer = getattr(node.calls, "activity_regularizer", None)
    if type(node.calls).__module__.startswith("keras.") and regularizer is None:
        return True
    absent = dict.fromkeys(one for one in node.inputs if model.tensors[one].dtype == "none")

    def call(tensors: dict[int, tf.Tensor], variables: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        known = {**absent, **tensors}
        with keras.StatelessScope(initialize_variables=False):
            part = execution.run_nodes(model, [node], known, variables, training=False)
        return [tf.cast(tf.reduce_sum(one), tf.float64) for one in part.added_losses]

    traced = tf.function(call, autograph=False)
    specs = _specs(model, [one for one in node.inputs if one not in absent], node.variables)
    if not traced.get_concrete_function(*specs).structured_outputs:
        return True
    tensors, variables = keras.tree.map_structure(_numbers, specs)

    def added(first: int, end: int, seed: int = 0) -> float:
        parts = {
            one: _rows(model.tensors[one], tensor, first, end) for one, tensor in tensors.items()
        }
        seeded = {
            key: value if value.dtype.is_floating else value + tf.cast(seed, value.dtype)
            for key, value in variables.items()
        }
        return float(sum(one.numpy() for one in traced(parts, seeded)))

    whole = added(0, 2 * _HALF)
    halves = added(0, _HALF), added(_HALF, 2 * _HALF)
    if np.isclose(whole, np.mean(halves), rtol=_ROUNDING, equal_nan=True):
        return True
    return whole != added(0, 2 * _HALF, seed=1)


def _specs(
    model: graph.Graph, inputs: Sequence[int], keys: Sequence[str]
) -> tuple[dict[int, tf.TensorSpec], dict[str, tf.TensorSpec]]:
    """The shapes of tensors, for twice as many examples, and of variables."""
    tensors = {}
    for one in inputs:
        sizes = model.tensors[one].sized(2 * _HALF)
        tensors[one] = tf.TensorSpec([size or 1 for size in sizes], model.tensors[one].dtype)
    variables = {
        key: tf.TensorSpec(model.variables[key].shape, model.variables[key].dtype) for key in keys
    }
    return tensors, variables


def _numbers(spec: tf.TensorSpec) -> tf.Tensor:
    random = np.random.default_rng(0)
    if spec.dtype.is_floating:
        return tf.constant(random.normal(size=spec.shape), spec.dtype)
    if spec.dtype == tf.string:
        return tf.fill(spec.shape, "")
    return tf.cast(random.integers(0, 2, size=spec.shape), spec.dtype)


def _rows(tensor: graph.Tensor, value: tf.Tensor, first: int, end: int) -> tf.Tensor:
    """Those of some examples."""
    if tensor.batch is None:
        return value
    return tf.gather(value, range(first * tensor.rows, end * tensor.rows), axis=tensor.batch)
