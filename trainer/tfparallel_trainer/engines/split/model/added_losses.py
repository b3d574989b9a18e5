"""Refuses layers that add to the loss what is not a mean over the examples of a batch."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import (
    example_independence,
    graph,
    interpreter,
    operations,
)
from tfparallel_trainer.objective import trial

_HALF = 2
"""Examples of half of a batch."""

_TRIALS = 8
"""Of what a layer adds: a router may send all that is drawn once to one expert."""


def check(model: graph.Graph) -> None:
    """Refuse (UserCodeError) a layer whose addition to the loss is not a mean over examples."""
    for node in model.nodes:
        if node.kind is graph.NodeKind.LAYER and not _adds_mean(model, node):
            raise errors.UserCodeError(
                f"What {node.name} adds by add_loss is no mean over examples, and a mesh divides "
                "the batch over its data axis and into microbatches. Let it be a mean, or let "
                "mesh.data and mesh.microbatches be 1.",
                function="build_model",
            )


def _adds_mean(model: graph.Graph, node: graph.Node) -> bool:
    """Whether what a layer adds to the loss of a batch is the mean of what it adds to the halves.

    That of Keras' layers is, but for their regularizers.
    """
    regularizer = getattr(node.calls, "activity_regularizer", None)
    if operations.is_of_keras(node.calls) and regularizer is None:
        return True

    return _adds_mean_in(model, node, False) and _adds_mean_in(model, node, True)


def _adds_mean_in(model: graph.Graph, node: graph.Node, training: bool) -> bool:
    """Whether what a layer adds in training, or in inference, is a mean or random."""
    drawn: list[Any] = []

    def call(tensors: dict[int, tf.Tensor], variables: dict[str, tf.Tensor]) -> list[tf.Tensor]:
        with (
            keras.StatelessScope(initialize_variables=False),
            trial.moving_statistics(),
            trial.same_draws() as draws,
        ):
            part = interpreter.run_nodes(model, [node], tensors, variables, training)
        drawn.append(draws.shapes)
        return [tf.cast(tf.reduce_sum(added_loss), tf.float64) for added_loss in part.added_losses]

    traced = tf.function(call, autograph=False)
    specs = interpreter.specs(model, node, 2 * _HALF)
    if not traced.get_concrete_function(*specs).structured_outputs:
        return True
    if all(_is_mean(model, node, traced, seed) for seed in range(_TRIALS)):
        return True
    is_random = any(shapes != drawn[0] for shapes in drawn)
    return is_random and _is_random(model, node, traced)


def _is_random(model: graph.Graph, node: graph.Node, traced: Any) -> bool:
    """Whether what is added differs for other seeds."""
    every = range(2 * _HALF)
    added = _added(model, node, traced, seed=0)
    return added(every) != added(every, 1)


def _is_mean(model: graph.Graph, node: graph.Node, traced: Any, seed: int) -> bool:
    """Whether what is added for numbers that are drawn is a mean."""
    every = range(2 * _HALF)
    added = _added(model, node, traced, seed)
    halves = added(every[:_HALF]), added(every[_HALF:])
    return bool(np.isclose(added(every), np.mean(halves), rtol=1e-3, equal_nan=True))


def _added(model: graph.Graph, node: graph.Node, traced: Any, seed: int) -> Callable[..., float]:
    """What gives what is added for some of the examples that are drawn."""
    random = np.random.default_rng(seed)
    draws = {
        number: example_independence.draw(random, model.tensors[number]) for number in node.inputs
    }
    variables = {
        key: example_independence.drawn_like(random, model.variables[key]) for key in node.variables
    }

    def added(examples: Sequence[int], seed: int = 0) -> float:
        tensors = {number: take(examples) for number, take in draws.items()}
        seeded = {
            key: value if value.dtype.is_floating else value + tf.cast(seed, value.dtype)
            for key, value in variables.items()
        }
        return float(sum(result.numpy() for result in traced(tensors, seeded)))

    return added
