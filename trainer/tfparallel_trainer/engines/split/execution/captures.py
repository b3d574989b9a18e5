"""Finds, before training, what ranks read besides examples and the model's variables.

A loss, a schedule, a metric or a layer may close over a variable that belongs to no layer. It may
also close over a value that each process has computed for itself. Callbacks write such a variable
where they run, and all ranks have to read it.
"""

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.engines.split.execution import loss_head, ranks
from tfparallel_trainer.engines.split.model import graph, interpreter, operations
from tfparallel_trainer.objective import likeness, replica, tracing

_EXAMPLES = 2
"""Number of examples of a trace with a static batch size."""


def find(local_ranks: ranks.Ranks, spec: Any) -> list[likeness.Digests]:
    """Record variables outside the model as closures of each rank's head.

    All heads of this process get the values of its first one. Returns digests of what is found,
    which must be the same on all devices and processes. `spec` is that of a part of a batch.

    Raises:
        UserCodeError: the step assigns such a variable, of which ranks would have several.
    """
    divided, heads = local_ranks.partition, [rank.head for rank in local_ranks.local]
    traced = dict(_nodes(divided.model))
    shared = {
        f"the layer {name}": agreement.digest(repr(trace.constants))
        for name, trace in traced.items()
    } | dict(_arrays(divided.model))
    digests: list[likeness.Digests] = []
    for rank_head in heads:
        if digests and not heads[0].closures:
            break
        of_head = _trace_head(rank_head, divided.model, spec)
        for trace in (*traced.values(), *([] if of_head is None else [of_head])):
            tracing.check(trace, divided.mesh.data * divided.microbatches)
            known_ids = {id(closure.value) for closure in rank_head.closures}
            rank_head.closures.extend(
                new for new in trace.closures if id(new.value) not in known_ids
            )
        for closure, first in zip(rank_head.closures, heads[0].closures, strict=False):
            if closure.kind == first.kind and closure.value is not first.value:
                closure.assign(tf.convert_to_tensor(first))
        of_loss = {} if of_head is None else likeness.describe_trace(rank_head.model, of_head)
        digests.append(shared | of_loss | likeness.describe_values(rank_head.closures))
    return digests


def _trace_head(rank_head: replica.Replica, model: graph.Graph, spec: Any) -> tracing.Trace | None:
    """Trace a loss. If that fails, the trace of the step will raise the reason."""
    try:
        return loss_head.trace(rank_head, model, spec)
    except errors.TrainerError:
        raise
    except Exception:  # a user's loss may raise anything
        return None


def _nodes(model: graph.Graph) -> Iterator[tuple[str, tracing.Trace]]:
    """The traces of the calls that run the user's code, by name."""
    for node in model.nodes:
        if node.kind is graph.NodeKind.LAYER and operations.runs_code_of_user(node):
            trace = _trace(model, node, None) or _trace(model, node, _EXAMPLES)
            if trace is not None:
                yield node.name, trace


def _trace(model: graph.Graph, node: graph.Node, examples: int | None) -> tracing.Trace | None:
    """Trace a call. If that fails, the trace of the step will raise the reason."""

    def call(tensors: dict[int, Any], variables: dict[str, Any]) -> None:
        interpreter.run_nodes(model, [node], tensors, variables, training=True)

    specs = interpreter.specs(model, node, examples)
    try:
        traced = tf.function(call, autograph=False).get_concrete_function(*specs)
    except Exception:  # a user's layer may raise anything
        return None
    return tracing.of_graph(traced.graph)


def _arrays(model: graph.Graph) -> Iterator[tuple[str, int]]:
    """Digests of arrays that operations take, such as a constant that is added."""
    for node in model.nodes:
        arguments = keras.tree.flatten((node.arguments, dict(node.keywords)))
        arrays = [
            array for array in arguments if isinstance(array, np.ndarray) or tf.is_tensor(array)
        ]
        if arrays:
            content = [*map(tracing.describe_array, arrays)]
            yield f"the operation {node.name}", agreement.digest(repr(content))
