"""Finds variables and constants that a step reads besides its examples and its state.

A loss, a layer, a schedule or a metric may close over a variable that belongs to no model. It may
also close over a value that each process has computed for itself. A trace of the forward pass shows
both.
"""

import base64
import contextlib
import dataclasses
import functools
import hashlib
import math
import pathlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors, random_state
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.objective import checks
from tfparallel_trainer.objective.replica import Replica

MOST_BYTES = 16 << 20
"""Maximum bytes of variables outside the model that callbacks write: a checkpoint's index has their
values."""
_MESSAGES = frozenset({"Assert", "Print", "PrintV2"})
"""Operations that only print their inputs, such as names of tensors, which Keras numbers."""
_COMPOSES = frozenset({"AsString", "Identity", "Pack", "StringFormat", "StringJoin"})
"""Operations that compose messages."""

_GENERATING = frozenset({"RngReadAndSkip", "RngSkip"})
"""Operations of `tf.random.Generator` on its state."""

Kind = tuple[str, str, tuple[int, ...]]
"""A name without counts, a type and a shape."""


@dataclasses.dataclass(frozen=True, slots=True)
class Closure:
    """A variable outside model and optimizer that a step reads; has Keras' interface."""

    value: tf.Variable
    is_assigned: bool
    """Whether the step itself writes it."""

    @property
    def path(self) -> str:
        """Its name, for people."""
        return str(self.value.name).partition(":")[0]

    @property
    def dtype(self) -> str:
        """The dtype, as Keras names it."""
        return str(self.value.dtype.name)

    @property
    def shape(self) -> tuple[int, ...]:
        """The lengths of its axes."""
        return tuple(self.value.shape)

    @property
    def kind(self) -> Kind:
        """The key by which other processes, and later attempts, find the same variable."""
        return uncounted_path(self.path), self.dtype, self.shape

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return math.prod(self.shape) * int(tf.as_dtype(self.dtype).size)

    def assign(self, value: Any) -> None:
        """Give it a value."""
        self.value.assign(value)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        return tf.convert_to_tensor(self.value, dtype, name=name)


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """What was found in the trace of a replica's forward pass."""

    closures: list[Closure]
    """Closures, in the order in which the step reads them."""
    operations: str
    """A digest of the operations and their shapes, whatever their order."""
    constants: list[tuple[str, str]]
    """Constants: the uncounted scope of each and its digest, sorted."""


def trace(replica: Replica, spec: Any) -> Trace:
    """Trace the forward pass and the loss on a part like `spec`, without computing anything."""
    run = functools.partial(compute, replica)
    function = tf.function(run, autograph=False).get_concrete_function(spec)
    return of_graph(function.graph, variables_of(replica))


def compute(replica: Replica, part: Any) -> None:
    """Compute everything that the trace should find, during tracing."""
    alone = collectives.Communicator(0, 1, 0, replica.device)
    with tf.device(replica.device), random_state.drawing_from(replica.generator):
        for phase in replica.computations:
            phase.fractions(part, alone, training=True)
            phase.penalty()
            _update(phase.optimizer, phase.variables)


def variables_of(replica: Replica) -> list[Any]:
    """The variables of a replica that are not closures."""
    return [
        *replica.model.variables,
        *replica.model.metrics_variables,
        *replica.optimizer.variables,
        *(variable for variable, _ in replica.seeds),
    ]


def of_graph(graph: Any, variables: Iterable[Any] = ()) -> Trace:
    """The closures, operations and constants in a traced graph of a model with these variables."""
    return Trace(
        closures=find_closures(graph, variables),
        operations=_digest("".join(sorted(map(_describe, graph.get_operations()))).encode()),
        constants=sorted((uncounted_path(name), digest) for name, digest in _constants(graph)),
    )


def uncounted(name: str) -> str:
    """A name without the numbers that Keras and TensorFlow append, which differ by process."""
    head, separator, count = name.rpartition("_")
    return uncounted(head) if separator and count.isdecimal() else name


def uncounted_path(name: str) -> str:
    """A path, each part without such numbers."""
    return "/".join(map(uncounted, name.split("/")))


def describe_array(array: Any) -> str:
    """A digest of an array, or of a tensor that is one."""
    value = np.asarray(array)
    texts = [_describe_text(text) for text in value.flat] if value.dtype == object else []
    content = repr(texts).encode() if texts else value.tobytes()
    return _digest(f"{value.shape} {value.dtype}".encode() + content)


def check(trace: Trace, ranks: int) -> None:
    """Refuse (UserCodeError) variables that would differ between replicas."""
    checks.check_variables(trace.closures)
    for closure in trace.closures:
        if closure.is_assigned and ranks > 1:
            raise errors.UserCodeError(
                f"A step assigns the variable {closure.path}, which belongs to no layer, so each "
                "replica would have another one. Create it in a layer by add_weight.",
                function="build_model",
            ).on_every_process()


def describe_excess(closures: Sequence[Closure], written: Iterable[int]) -> str:
    """Describe that callbacks have written more variables than a checkpoint keeps; else empty."""
    sizes = {closures[index].path: closures[index].bytes for index in written}
    if sum(sizes.values()) <= MOST_BYTES:
        return ""
    largest = max(sizes, key=sizes.__getitem__)
    return (
        f"A callback writes the variable {largest} of {sizes[largest] / 2**20:,.1f} MiB, which "
        f"belongs to no layer, and a checkpoint keeps {MOST_BYTES / 2**20:,.0f} MiB of such "
        "variables. Let a layer of the model create it by add_weight(…, trainable=False)."
    )


def read(closures: Iterable[Closure]) -> list[tuple[Kind, tf.Tensor]]:
    """The kinds of closures with their values."""
    return [(closure.kind, tf.convert_to_tensor(closure)) for closure in closures]


def dump(closures: Sequence[Closure], places: Iterable[int]) -> dict[str, Any]:
    """The values of the closures at some positions, as JSON for `restore`."""
    return {str(index): _dump(closures[index]) for index in places}


def restore(closures: Sequence[Closure], values: Mapping[str, Any]) -> None:
    """Assign the values of `dump` to the closures that are still the same."""
    for index, closure in enumerate(closures):
        kept = values.get(str(index))
        if kept is not None and kept["variable"] == _dump(closure)["variable"]:
            kind = tf.as_dtype(closure.dtype).as_numpy_dtype
            content = np.frombuffer(base64.b64decode(kept["value"]), kind)
            closure.assign(content.reshape(closure.shape))


def _dump(closure: Closure) -> dict[str, Any]:
    content = base64.b64encode(tf.convert_to_tensor(closure).numpy().tobytes()).decode()
    path, dtype, shape = closure.kind
    return {"variable": [path, dtype, list(shape)], "value": content}


def _update(optimizer: Any, variables: Sequence[Any]) -> None:
    """Trace what an optimizer may read: for Keras' own, only the learning rate."""
    if type(optimizer).__module__.startswith("keras.") or not variables:
        tf.convert_to_tensor(optimizer.learning_rate)
    else:
        optimizer.apply([tf.zeros_like(variable) for variable in variables], variables)


def find_closures(graph: Any, variables: Iterable[Any]) -> list[Closure]:
    """The variables that a graph reads besides these, in the order in which it takes them."""
    known_handles = {id(copy.handle) for variable in variables for copy in _copies(variable.value)}
    read = {id(variable.handle): variable for variable in graph.variables}
    assigned = {
        operation.inputs[0].name
        for operation in graph.get_operations()
        if "Assign" in operation.type and operation.inputs
    }
    return [
        Closure(read[id(outer)], is_assigned=inner.name in assigned)
        for outer, inner in graph.captures
        if id(outer) in read and id(outer) not in known_handles and not _is_generator(inner)
    ]


def _copies(value: Any) -> Sequence[Any]:
    """The TensorFlow variables of a variable: one, a copy for each replica, or one on a server."""
    return getattr(value, "values", None) or [getattr(value, "_v", value)]


def _is_generator(handle: tf.Tensor) -> bool:
    """Whether all readers of a variable draw random numbers, which differ by rank anyway."""
    takers = handle.consumers()
    return bool(takers) and all(taker.type in _GENERATING for taker in takers)


def _constants(graph: Any) -> Iterator[tuple[str, str]]:
    """The constants in a graph, in the functions that it calls, and among its captured tensors."""
    definition = graph.as_graph_def()
    for function in definition.library.function:
        yield from _constants_of(function.node_def, function.ret.values())
    yield from _constants_of(definition.node, ())
    for outer, inner in graph.captures:
        if hasattr(outer, "numpy") and outer.dtype not in (tf.resource, tf.variant):
            yield inner.op.name, describe_array(outer)


def _constants_of(nodes: Any, returned: Iterable[str]) -> Iterator[tuple[str, str]]:
    """The constants of a function, except those of messages."""
    takers: dict[str, set[str]] = {}
    for taker, inputs in (*((node.name, node.input) for node in nodes), ("", returned)):
        for name in inputs:
            takers.setdefault(name.partition(":")[0], set()).add(taker)
    operations = {node.name: node.op for node in nodes}

    def is_message(name: str) -> bool:
        """Whether only messages use a value."""
        return bool(takers.get(name)) and all(
            operations.get(taker) in _MESSAGES
            or (operations.get(taker) in _COMPOSES and is_message(taker))
            for taker in takers[name]
        )

    for node in nodes:
        if node.op == "Const" and not is_message(node.name):
            yield node.name, describe_array(tf.make_ndarray(node.attr["value"].tensor))


def _describe(operation: tf.Operation) -> str:
    return f"{operation.type} {[str(output.shape) for output in operation.outputs]}\n"


def _describe_text(text: bytes) -> tuple[bytes, int]:
    """A text as processes compare it.

    A file, whose folder may differ, becomes its name and size.
    """
    path = pathlib.Path(text.decode(errors="replace"))
    with contextlib.suppress(OSError, ValueError):  # it is not a path
        if path.is_absolute() and path.is_file():
            return path.name.encode(), path.stat().st_size
    return text, -1


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
