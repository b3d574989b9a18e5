"""Measures on one device of this machine how long each node takes, and an update."""

import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.split.model import execution, graph
from tfparallel_trainer.split.planning import times

_REPEATS = 5
_SMALLER = 4
"""A second measurement has this many times fewer examples; both give a line."""


_WEIGHTS = 1 << 20
"""Elements of a weight whose update is measured, and there are so many of them."""
_UPDATED = 4


def measure(model: graph.Graph, examples: int, length: int | None = None) -> list[times.NodeTime]:
    """Run each node alone on made-up tensors; nodes that do the same are measured once.

    Args:
        model: the graph of a model without weights; what a node reads is made up, too.
        examples: of a microbatch.
        length: stands for dimensions that only the data tells.
    """
    known: dict[str, times.NodeTime] = {}
    found = []
    for node in model.nodes:
        kind = _kind(model, node)
        if kind not in known:
            known[kind] = _measured(model, node, examples, length)
        found.append(known[kind])
    return found


def update_bandwidth(optimizer: Any, model: graph.Graph) -> float | None:
    """Bytes a second of weights, gradients and slots that an update reads and writes.

    Each is counted once for each time it is read or written, as `tables.Tables.applies` does.

    Args:
        optimizer: the one that the user compiled the model with; it stays as it is.
        model: whose weights' number of axes counts, because some optimizers go by it.

    Returns:
        None where no weight is trained.
    """
    trained = [one for one in model.variables.values() if one.trainable]
    if not trained:
        return None
    largest = max(trained, key=lambda one: math.prod(one.shape))
    axes = len(largest.shape)
    shape = (round(_WEIGHTS ** (1 / axes)),) * axes
    made = [keras.Variable("zeros", shape=shape, dtype=largest.dtype) for _ in range(_UPDATED)]
    given = type(optimizer).from_config(optimizer.get_config())
    given.build(made)
    rows = [tf.cast(tf.fill(shape, 1e-3), one.dtype) for one in made]

    def apply() -> Any:
        finite = [tf.reduce_all(tf.math.is_finite(one)) for one in rows]
        given.apply(rows, made)
        return finite

    of_made = sum(math.prod(one.shape) * graph.itemsize(one.dtype) for one in made)
    of_all = sum(math.prod(one.shape) * graph.itemsize(one.dtype) for one in given.variables)
    return (3 * of_made + 2 * of_all) / _seconds(apply)


def _kind(model: graph.Graph, node: graph.Node) -> str:
    """What nodes have in common that take equally long."""
    config = node.calls.get_config() if hasattr(node.calls, "get_config") else {}
    told = {key: value for key, value in config.items() if key != "name"}
    shapes = [(model.tensors[one].shape, model.tensors[one].dtype) for one in node.inputs]
    held = [(model.variables[key].shape, model.variables[key].dtype) for key in node.variables]
    shown = (type(node.calls).__name__, node.kind, told, shapes, held, str(node.keywords))
    return json.dumps(shown, default=str, sort_keys=True)


def _measured(
    model: graph.Graph, node: graph.Node, examples: int, length: int | None
) -> times.NodeTime:
    counts = sorted({max(1, examples // _SMALLER), examples})
    found = [_at(model, node, count, length) for count in counts]
    forward, both = (_line(counts, [one[place] for one in found]) for place in range(2))
    fixed, each = both.fixed - forward.fixed, both.each - forward.each
    return times.NodeTime(forward, times.Line(max(0.0, fixed), max(0.0, each)))


def _line(counts: list[int], seconds: list[float]) -> times.Line:
    """The line through one or two measurements; none of its parts is negative."""
    each = seconds[-1] / counts[-1]
    if len(counts) > 1:
        each = min(each, max(0.0, (seconds[1] - seconds[0]) / (counts[1] - counts[0])))
    return times.Line(max(0.0, seconds[-1] - each * counts[-1]), each)


def _at(
    model: graph.Graph, node: graph.Node, examples: int, length: int | None
) -> tuple[float, float]:
    """Seconds of the forward alone, and of forward and backward."""
    tensors = {one: _made_up(model.tensors[one], examples, length) for one in node.inputs}
    variables = {key: _values(model.variables[key]) for key in node.variables}
    floats = {key: one for key, one in variables.items() if one.dtype.is_floating}
    sources = [*floats.values(), *(one for one in tensors.values() if one.dtype.is_floating)]

    def forward() -> Any:
        part = execution.run_nodes(model, [node], tensors, variables, training=True)
        return [part.tensors[one] for one in node.outputs if part.tensors[one] is not None]

    def both() -> Any:
        with tf.GradientTape() as tape:
            tape.watch(sources)
            given = [one for one in forward() if one.dtype.is_floating]
        return tape.gradient(given, sources) if given and sources else forward()

    return _seconds(forward), _seconds(both)


def _seconds(function: Callable[[], Any]) -> float:
    """The median of some runs, without the first one, which traces."""
    traced = tf.function(function)
    found = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        traced()  # on a processor it is done when the call returns
        found.append(time.perf_counter() - began)
    return statistics.median(found[1:])


def _made_up(known: graph.Tensor, examples: int, length: int | None) -> Any:
    """Any tensor of a shape and a type; indices are 0."""
    shape = [length or 1 if one is None else one for one in known.shape]
    if known.shape[:1] == (None,):
        shape[0] = examples
    if not known.is_real:
        return tf.zeros(shape, known.dtype)
    return tf.cast(tf.random.stateless_normal(shape, (1, 2)), known.dtype)


def _values(variable: Any) -> Any:
    if "float" not in variable.dtype:
        return tf.zeros(variable.shape, variable.dtype)
    return tf.cast(0.1 * tf.random.stateless_normal(variable.shape, (3, 4)), variable.dtype)
