"""Whether XLA can compile what a rank computes of a step by itself.

One rank computes the whole step by itself. Of several, each computes a forward and backward pass.
Collectives follow, and then the update, which many small variables go into and come out of.
"""

import dataclasses
import re
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import collectives
from tfparallel_trainer.data import nest
from tfparallel_trainer.objective import synchrony, train_step
from tfparallel_trainer.objective.replica import Replica

_UNSUPPORTED = re.compile(r"No registered '(\w+)' OpKernel")
_NODE = re.compile(r"{{node ([^{}]+)}}")
_DATA_DEPENDENT = re.compile(r"node `([^`]+)` with op (\w+) must be")
_MOST_LETTERS = 200


def find_obstacle(replica: Replica, spec: Any, examples: int) -> str:
    """Return why XLA cannot compile a rank's part of a step, for people; empty if it can.

    The step is translated for XLA, and nothing is computed.

    Args:
        replica: a rank.
        spec: tf.TensorSpec [None, …] of its part of a batch.
        examples: how many a part has.
    """
    if replica.data.size > 1 and _adds_up(replica):
        return "layers add up over replicas within the forward pass"
    alone = dataclasses.replace(
        replica, data=collectives.Communicator(0, 1, 0, replica.device), is_compiled=False
    )
    traits: list[train_step.PhaseTraits] = []

    def run(*leaves: tf.Tensor) -> list[tf.Tensor]:
        rank_input = train_step.RankInput(
            part=nest.packed(spec, list(leaves)),
            step=tf.zeros((), tf.int64),
            requests=tf.zeros((0,), tf.float64),
            examples=tf.constant(examples, tf.float64),
        )
        losses = []
        for phase, result in train_step.compute_phases(alone, rank_input):
            if replica.data.size == 1:
                phase.optimizer.apply(result.gradients, phase.variables)
            traits.append(result.traits)
            losses.append(result.loss)
        return losses

    if replica.data.size > 1:
        # Of batches of unknown size, as a step is traced.
        tf.function(run, autograph=False).get_concrete_function(*nest.leaves(spec))
        if any(map(train_step.divides_by_data, replica.computations, traits)):
            return "masks or weights of all replicas decide what the loss is divided by"
    sized = [
        tf.TensorSpec([examples, *leaf.shape[1:]], leaf.dtype, name=f"leaf_{number}")
        for number, leaf in enumerate(nest.leaves(spec))
    ]
    function = tf.function(run, autograph=False, jit_compile=True)
    function.get_concrete_function(*sized)  # what the user's code raises is no obstacle
    try:
        function.experimental_get_compiler_ir(*sized)(stage="hlo")
    except (ValueError, tf.errors.OpError) as error:
        return _describe(str(error))
    return ""


def _adds_up(replica: Replica) -> bool:
    return bool(synchrony.layers(replica.model) or (replica.updates and replica.updates.adds_up))


def _describe(message: str) -> str:
    """Return the operation that stops XLA; the begin of its message if that names none."""
    unsupported, node = _UNSUPPORTED.search(message), _NODE.search(message)
    if unsupported and unsupported[1] == "_Arg":
        return "the data has values that it does not know, such as texts"
    if unsupported and node:
        return f"it does not know the operation {unsupported[1]} ({node[1]})"
    data_dependent = _DATA_DEPENDENT.search(message)
    if data_dependent:
        name, kind = data_dependent.groups()
        return f"the shape that {kind} ({name}) makes depends on data"
    return " ".join(message.split())[:_MOST_LETTERS]
