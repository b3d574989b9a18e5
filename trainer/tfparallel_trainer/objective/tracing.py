"""Variables and constants that a step takes besides its examples and its state.

A loss, a layer, a schedule or a metric may close over a variable that belongs to no model. It may
also close over a value that each process has computed for itself. A trace of the forward pass knows
both.
"""

import base64
import dataclasses
import hashlib
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import checks, replica
from tfparallel_trainer.runtime import random_state


@dataclasses.dataclass(frozen=True, slots=True)
class Closure:
    """A variable that a step reads, of neither the model nor its optimizer; like Keras' own."""

    value: tf.Variable
    is_assigned: bool
    """Whether the step itself writes it."""

    @property
    def path(self) -> str:
        """Its name, for people."""
        return str(self.value.name).partition(":")[0]

    @property
    def dtype(self) -> str:
        """As Keras writes it."""
        return str(self.value.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return tuple(self.value.shape)

    def assign(self, value: Any) -> None:
        """Give it a value."""
        self.value.assign(value)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype, name=name)


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What was found in the trace of a replica's forward pass."""

    closures: list[Closure]
    """In the order in which the step takes them."""
    operations: str
    """A digest of the operations and their shapes."""
    constants: list[tuple[str, str]]
    """The place of each among the names of layers, and its digest; in order."""


def trace(replica: replica.Replica, spec: Any) -> Trace:
    """Trace the forward pass and the loss on a part like `spec`; nothing is computed."""
    alone = collectives.Communicator(0, 1, 0, replica.device)

    def run(part: Any) -> None:
        with tf.device(replica.device), random_state.drawing_from(replica.generator):
            for phase in replica.computations:
                phase.fractions(part, alone, training=True)
                phase.penalty()
                _update(phase.optimizer, phase.variables)

    function = tf.function(run, autograph=False).get_concrete_function(spec)
    graph = function.graph
    return Trace(
        closures=list(_closures(replica, graph)),
        operations=_digest("".join(map(_describe, graph.get_operations())).encode()),
        constants=list(_constants(graph)),
    )


def check(trace: Trace, ranks: int) -> None:
    """Refuse (UserCodeError) variables that replicas cannot have alike."""
    checks.check_variables(trace.closures)
    for closure in trace.closures:
        if closure.is_assigned and ranks > 1:
            raise errors.UserCodeError(
                f"A step assigns the variable {closure.path}, which belongs to no layer, so each "
                "replica would have another one. Create it in a layer by add_weight.",
                function="build_model",
            ).on_every_process()


def dump(closures: Sequence[Closure], places: Iterable[int]) -> dict[str, Any]:
    """The values of those at some places, for JSON; `restore` takes it."""
    return {str(place): _dump(closures[place]) for place in places}


def restore(closures: Sequence[Closure], values: Mapping[str, Any]) -> None:
    """Assign what `dump` gave, to those that are still the same."""
    for place, closure in enumerate(closures):
        kept = values.get(str(place))
        if kept is not None and kept["variable"] == _dump(closure)["variable"]:
            kind = tf.as_dtype(closure.dtype).as_numpy_dtype
            content = np.frombuffer(base64.b64decode(kept["value"]), kind)
            closure.assign(content.reshape(closure.shape))


def _dump(closure: Closure) -> dict[str, Any]:
    content = base64.b64encode(tf.convert_to_tensor(closure).numpy().tobytes()).decode()
    return {"variable": [closure.path, closure.dtype, list(closure.shape)], "value": content}


def _update(optimizer: Any, variables: Sequence[Any]) -> None:
    """Trace what an optimizer may take: of Keras' own, the learning rate alone."""
    if type(optimizer).__module__.startswith("keras.") or not variables:
        tf.convert_to_tensor(optimizer.learning_rate)
    else:
        optimizer.apply([tf.zeros_like(variable) for variable in variables], variables)


def _closures(replica: replica.Replica, graph: Any) -> Iterator[Closure]:
    variables = [
        *replica.model.variables,
        *replica.model.metrics_variables,
        *replica.optimizer.variables,
        *(variable for variable, _ in replica.seeds),
    ]
    known = {id(variable.value.handle) for variable in variables}
    read = {id(variable.handle): variable for variable in graph.variables}
    assigned = {
        operation.inputs[0].name
        for operation in graph.get_operations()
        if "Assign" in operation.type and operation.inputs
    }
    for outer, inner in graph.captures:
        if id(outer) in read and id(outer) not in known:
            yield Closure(read[id(outer)], is_assigned=inner.name in assigned)


def _constants(graph: Any) -> Iterator[tuple[str, str]]:
    """Those in the graph, in the functions that it calls, and tensors that it captures."""
    definition = graph.as_graph_def()
    # The bodies of loops and conditions have random names, by which the library sorts them.
    bodies = [list(_constants_of(function.node_def)) for function in definition.library.function]
    yield from itertools.chain.from_iterable(sorted(bodies))
    yield from _constants_of(definition.node)
    for outer, inner in graph.captures:
        if hasattr(outer, "numpy") and outer.dtype not in (tf.resource, tf.variant):
            yield inner.name, _digest(_bytes(outer.numpy()))


def _constants_of(nodes: Any) -> Iterator[tuple[str, str]]:
    for node in nodes:
        if node.op == "Const":
            yield node.name, _digest(_bytes(tf.make_ndarray(node.attr["value"].tensor)))


def _describe(operation: tf.Operation) -> str:
    return f"{operation.type} {[str(output.shape) for output in operation.outputs]}\n"


def _bytes(array: Any) -> bytes:
    value = np.asarray(array)
    content = repr(value.tolist()).encode() if value.dtype == object else value.tobytes()
    return f"{value.shape} {value.dtype}".encode() + content


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
