"""Refuses layers that draw at random without a seed generator of their own.

Each rank runs replicated layers, and each microbatch runs them again. Random numbers have to follow
from a seed that the graph knows. Otherwise, ranks would draw different numbers, and steps the same
ones.
"""

import itertools
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, random_state
from tfparallel_trainer.engines.split.model import graph, interpreter, operations

_EXAMPLES = 2
_STATEFUL = ("Random", "Multinomial", "TruncatedNormal")
"""Part of the names of TensorFlow's operations that keep a state between calls."""


def check(model: graph.Graph) -> None:
    """Refuse (UserCodeError) a model with something random that follows from no seed generator."""
    for node in model.nodes:
        if operations.runs_code_of_user(node) and (name := _drawing(model, node)):
            raise errors.UserCodeError(
                f"{node.name} draws by {name} without a seed generator, so devices that split the "
                "model would draw different numbers. Let the layer create "
                "self.seeds = keras.random.SeedGenerator(), and give seed=self.seeds to an "
                "operation of keras.random.",
                function="build_model",
            )


class _Generator(keras.random.SeedGenerator):  # type: ignore[misc]  # Keras has no types
    """Records that random numbers were drawn from it."""

    drew = False

    def next(self, ordered: bool = True) -> Any:
        """Return a seed."""
        self.drew = True
        return super().next(ordered)


def _drawing(model: graph.Graph, node: graph.Node) -> str:
    """The operation by which a node draws without a generator; empty if it does not."""
    generator = _Generator(0)

    def call(tensors: dict[int, tf.Tensor], variables: dict[str, tf.Tensor]) -> None:
        with random_state.drawing_from(generator):
            interpreter.run_nodes(model, [node], tensors, variables, training=True)

    specs = interpreter.specs(model, node, _EXAMPLES)
    traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    if generator.drew:
        return "keras.random"
    definition = traced.graph.as_graph_def()
    functions = (function.node_def for function in definition.library.function)
    for operation in itertools.chain(definition.node, *functions):
        name: str = operation.op
        if not name.startswith("Stateless") and any(one in name for one in _STATEFUL):
            return name
    return ""
