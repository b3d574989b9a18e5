"""Measures on one device of this machine how long each node takes, and an update."""

import json
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.engines.split.model import graph, interpreter
from tfparallel_trainer.engines.split.planning import costs, hardware

_REPEATS = 5
_SMALLER = 4
"""A second measurement has this many times fewer examples; both give a line."""

_WEIGHTS = (16, 1 << 20)
"""Elements of weights whose update is measured."""
_UPDATED = 8
"""Weights that are updated together."""

_COPIES = 8
_TOGETHER = 1 << 26
"""As many copies of a node are measured as have so many bytes, at most `_COPIES`."""


def measure(model: graph.Graph, examples: int, length: int | None = None) -> list[costs.NodeTime]:
    """Run each node alone for the examples of a microbatch; those that do the same only once.

    Tensors and weights are made up, with a length where only the data would tell it.
    """
    counts = sorted({max(1, examples // _SMALLER), examples})
    times_by_kind: dict[str, costs.NodeTime] = {}
    node_times = []
    for node in model.nodes:
        kind = _kind(model, node)
        if kind not in times_by_kind:
            seconds = zip(*(_at(model, node, count, length) for count in counts), strict=True)
            forward, both = (_line(counts, times) for times in seconds)
            fixed, per_example = both.fixed - forward.fixed, both.per_example - forward.per_example
            times_by_kind[kind] = costs.NodeTime(
                forward, costs.Line(max(0.0, fixed), max(0.0, per_example))
            )
        node_times.append(times_by_kind[kind])
    return node_times


def update(optimizer: Any, model: graph.Graph) -> hardware.Update:
    """Measure how fast a copy of an optimizer changes weights like the largest of a model."""
    trained = [variable for variable in model.variables.values() if variable.trainable]
    if not trained:
        return hardware.Update()
    like = max(trained, key=lambda variable: math.prod(variable.shape))
    (few, less), (many, more) = (_update(optimizer, like, size) for size in _WEIGHTS)
    less = min(less, more / 2)  # other work on the machine may have held up the smaller ones
    bandwidth = (many - few) / (more - less)
    return hardware.Update(
        bandwidth=bandwidth, weight_seconds=max(0.0, less - few / bandwidth) / _UPDATED
    )


def _update(optimizer: Any, like: Any, elements: int) -> tuple[float, float]:
    """Bytes of weights, their gradients and slots, counted as in `cost_tables`, and seconds."""
    axes = len(like.shape)
    shape = (round(elements ** (1 / axes)),) * axes
    weights = [keras.Variable("zeros", shape=shape, dtype=like.dtype) for _ in range(_UPDATED)]
    optimizer_copy = type(optimizer).from_config(optimizer.get_config())
    optimizer_copy.build(weights)
    rows = [tf.cast(tf.fill(shape, 1e-3), shape_of_weight.dtype) for shape_of_weight in weights]

    def apply() -> Any:
        finite = [tf.reduce_all(tf.math.is_finite(update_row)) for update_row in rows]
        optimizer_copy.apply(rows, weights)
        return finite

    parameters, slots = (
        sum(math.prod(variable.shape) * graph.itemsize(variable.dtype) for variable in group)
        for group in (weights, optimizer_copy.variables)
    )
    return 3 * parameters + 2 * slots, _seconds(apply)


def _kind(model: graph.Graph, node: graph.Node) -> str:
    """What nodes have in common that take equally long."""
    config = node.calls.get_config() if hasattr(node.calls, "get_config") else {}
    options = {key: value for key, value in config.items() if key != "name"}
    shapes = [(model.tensors[number].shape, model.tensors[number].dtype) for number in node.inputs]
    variables = [(model.variables[key].shape, model.variables[key].dtype) for key in node.variables]
    shown = (type(node.calls).__name__, node.kind, options, shapes, variables, str(node.keywords))
    return json.dumps(shown, default=str, sort_keys=True)


def _line(counts: Sequence[int], seconds: Sequence[float]) -> costs.Line:
    """The line through one or two measurements; none of its parts is negative."""
    per_example = seconds[-1] / counts[-1]
    if len(counts) > 1:
        per_example = min(
            per_example, max(0.0, (seconds[1] - seconds[0]) / (counts[1] - counts[0]))
        )
    return costs.Line(max(0.0, seconds[-1] - per_example * counts[-1]), per_example)


def _at(
    model: graph.Graph, node: graph.Node, examples: int, length: int | None
) -> tuple[float, float]:
    """Seconds of the forward alone, and of forward and backward.

    Several copies run, first all forward and then all backward. So what a backward needs comes from
    memory, as in a step, and not from the processor's cache.
    """
    copies = [_Copy(model, node, examples, length)]
    count = max(1, min(_COPIES, _TOGETHER // max(1, copies[0].size)))
    copies += [_Copy(model, node, examples, length) for _ in range(count - 1)]

    def forward() -> Any:
        return [copy.forward() for copy in copies]

    def both() -> Any:
        tapes, outputs = [], []
        for copy in copies:
            with tf.GradientTape() as tape:
                tape.watch(copy.sources)
                outputs.append([row for row in copy.forward() if row.dtype.is_floating])
            tapes.append(tape)
        with tf.control_dependencies([row for rows in outputs for row in rows]):
            gradients = [
                tape.gradient(rows, copy.sources) if rows and copy.sources else []
                for tape, rows, copy in zip(tapes, outputs, copies, strict=True)
            ]
        return outputs, gradients

    return _seconds(forward) / count, _seconds(both) / count


class _Copy:
    """A node with made-up tensors and variables of its own."""

    def __init__(
        self, model: graph.Graph, node: graph.Node, examples: int, length: int | None
    ) -> None:
        self._model = model
        self._node = node
        self._tensors = {}
        for number in node.inputs:
            tensor = model.tensors[number]
            sizes = [size or length or 1 for size in tensor.sized(examples)]
            self._tensors[number] = _made_up(sizes, tensor.dtype)
        variables_by_key = {key: model.variables[key] for key in node.variables}
        self._variables = {
            key: _made_up(variable.shape, variable.dtype, 0.1)
            for key, variable in variables_by_key.items()
        }
        values = (*self._variables.values(), *self._tensors.values())
        self.size = sum(int(source.shape.num_elements()) * source.dtype.size for source in values)
        """Bytes of what it takes."""
        self.sources = [source for source in values if source.dtype.is_floating]
        """What gradients are taken of."""

    def forward(self) -> list[Any]:
        """Run it."""
        part = interpreter.run_nodes(
            self._model, [self._node], self._tensors, self._variables, training=True
        )
        return [
            part.tensors[number]
            for number in self._node.outputs
            if part.tensors[number] is not None
        ]


def _seconds(function: Callable[[], Any]) -> float:
    """The median of some runs, without the first one, which traces."""
    traced = tf.function(function)
    durations = []
    for _ in range(_REPEATS + 1):
        began = time.perf_counter()
        traced()  # on a processor it is done when the call returns
        durations.append(time.perf_counter() - began)
    return statistics.median(durations[1:])


def _made_up(shape: Sequence[int], dtype: str, scale: float = 1.0) -> Any:
    """Any tensor of a shape and a type; indices are 0."""
    if "float" not in dtype:
        return tf.zeros(shape, dtype)
    return tf.cast(scale * tf.random.stateless_normal(shape, (1, 2)), dtype)
