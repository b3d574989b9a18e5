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
from tfparallel_trainer.engines.split.model import execution, graph, mixing, operations

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
    if operations.is_of_keras(node.calls) and regularizer is None:
        return True

    def call(tensors: dict[int, tf.Tensor], variables: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        with keras.StatelessScope(initialize_variables=False):
            part = execution.run_nodes(model, [node], tensors, variables, training=False)
        return [tf.cast(tf.reduce_sum(one), tf.float64) for one in part.added_losses]

    traced = tf.function(call, autograph=False)
    specs = execution.specs(model, node, 2 * _HALF)
    if not traced.get_concrete_function(*specs).structured_outputs:
        return True
    random = np.random.default_rng(0)
    draws = {one: mixing.draw(random, model.tensors[one]) for one in node.inputs}
    variables = {key: mixing.drawn_like(random, model.variables[key]) for key in node.variables}

    def added(examples: Sequence[int], seed: int = 0) -> float:
        tensors = {one: take(examples) for one, take in draws.items()}
        seeded = {
            key: value if value.dtype.is_floating else value + tf.cast(seed, value.dtype)
            for key, value in variables.items()
        }
        return float(sum(one.numpy() for one in traced(tensors, seeded)))

    every = range(2 * _HALF)
    whole = added(every)
    halves = added(every[:_HALF]), added(every[_HALF:])
    if np.isclose(whole, np.mean(halves), rtol=_ROUNDING, equal_nan=True):
        return True
    return whole != added(every, seed=1)
