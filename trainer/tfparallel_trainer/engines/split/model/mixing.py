"""Refuses models that compute with several examples at once.

A mesh divides a batch over its data axis and into microbatches. So what a model gives for an
example must not depend on the others. Two signs show that it does. What a call gives depends on the
examples but does not grow with the batch, or grows with it twice. Or an operation works along the
batch. `objective.synchrony` adds up the statistics of layers such as BatchNormalization.
"""

from collections.abc import Sequence

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import execution, graph
from tfparallel_trainer.objective import lookups

_ALONG = {
    *("Argsort", "Cumprod", "Cumsum", "Flip", "LogSoftmax", "Normalize", "Roll", "Softmax"),
    *("Sort", "UnitNormalization"),
}
"""Keras' operations and layers that work along `axis` and leave the shape as it is."""

_EXAMPLES = 2
"""So that sizes are known while tracing, and what is computed from them depends on no example."""


def check(model: graph.Graph) -> None:
    """See that a model computes each example by itself.

    Raises:
        UserCodeError: a call does not.
    """
    used = {*model.output_tensors(), *(one for node in model.nodes for one in node.inputs)}
    for node in model.nodes:
        lost = [one for one in _without_batch(model, node) if one in used]
        if _works_along_batch(model, node) or (lost and _reads(model, node, lost)):
            raise errors.UserCodeError(
                f"{node.name} computes with all examples of a batch at once, and a mesh divides "
                "the batch over its data axis and into microbatches. Let what the model gives for "
                "an example depend on that example alone, or let mesh.data and mesh.microbatches "
                "be 1."
            )


def _works_along_batch(model: graph.Graph, node: graph.Node) -> bool:
    """Whether an operation mixes the rows of the dimension that grows with the batch."""
    if not node.inputs:
        return False
    tensor = model.tensors[node.inputs[0]]
    if tensor.batch is None:
        return False
    if type(node.calls).__name__ == "GetItem":
        keys = node.arguments[1] if isinstance(node.arguments[1], tuple) else (node.arguments[1],)
        first = keys[tensor.batch] if tensor.batch < len(keys) and ... not in keys else slice(None)
        return isinstance(first, slice) and first.step not in (None, 1)
    if type(node.calls).__name__ not in _ALONG:
        return False
    axes = getattr(node.calls, "axis", None)
    rank = len(tensor.shape)
    if axes is None:
        return True
    return tensor.batch in [one % rank for one in keras.tree.flatten(axes)]


def _without_batch(model: graph.Graph, node: graph.Node) -> list[int]:
    """What does not grow with the batch, or in several dimensions, though an input does grow."""
    if all(model.tensors[one].batch is None for one in node.inputs):
        return []
    tensors = {one: model.tensors[one] for one in node.outputs}
    return [one for one, known in tensors.items() if known.batch is None and known.dtype != "none"]


def _reads(model: graph.Graph, node: graph.Node, lost: Sequence[int]) -> bool:
    """Whether some outputs, which do not grow with the batch, depend on what examples hold.

    A table of positions, say, depends on how long they are at most.
    """

    def call(tensors: dict[int, tf.Tensor]) -> None:
        with keras.StatelessScope(initialize_variables=False):
            variables = {
                key: tf.zeros(model.variables[key].shape, model.variables[key].dtype)
                for key in node.variables
            }
            outputs = execution.run_nodes(model, [node], tensors, variables, training=False).tensors
        starts = [tensor for tensor in tensors.values() if tensor is not None]
        depends.extend(
            lookups.depends(outputs[one], starts) for one in lost if outputs[one] is not None
        )

    depends: list[bool] = []
    specs = {
        one: tf.TensorSpec(model.tensors[one].sized(_EXAMPLES), model.tensors[one].dtype)
        for one in node.inputs
    }
    tf.function(call, autograph=False).get_concrete_function(specs)
    return any(depends)
