"""Runs the nodes of a graph on given tensors and given variables; changes neither."""

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer.split import graph


@dataclasses.dataclass(frozen=True, slots=True)
class Result:
    """What a model gives for its inputs."""

    outputs: Any
    """Nested as the model gives them."""
    masks: dict[str, Any]
    """Of each output that has one, by its name."""
    changed: dict[str, Any]
    """Variables that the run would have changed, by key: statistics and seeds."""


def run(model: graph.Graph, inputs: Any, variables: Mapping[str, Any], training: bool) -> Result:
    """Compute what calling the model would.

    Args:
        model: the graph.
        inputs: nested as the model takes them.
        variables: the values of all variables of the model, by key.
        training: whether layers behave as in training.
    """
    leaves = keras.tree.flatten(inputs)
    tensors = {
        number: _as_wanted(value, model.tensors[number])
        for number, value in zip(model.inputs, leaves, strict=True)
    }
    found, changed = run_nodes(model, model.nodes, tensors, variables, training)
    return Result(
        outputs=_filled(model.output_structure, found),
        masks={one.name: found[one.mask] for one in model.outputs if one.mask is not None},
        changed=changed,
    )


def run_nodes(
    model: graph.Graph,
    nodes: Iterable[graph.Node],
    tensors: Mapping[int, Any],
    variables: Mapping[str, Any],
    training: bool,
) -> tuple[dict[int, Any], dict[str, Any]]:
    """Run some nodes of a graph.

    Args:
        model: the graph.
        nodes: some of its nodes, in the same order.
        tensors: what the nodes take from outside, by number.
        variables: the values of the variables that they read, by key.
        training: whether layers behave as in training.

    Returns:
        All tensors that are then known, and the variables that the run would have changed.
    """
    found = dict(tensors)
    given = [(model.variables[key], value) for key, value in variables.items()]
    with keras.StatelessScope(state_mapping=given) as scope:
        before = [scope.get_current_value(variable) for variable, _ in given]
        for node in nodes:
            outputs = _call(node, found, training)
            found.update(zip(node.outputs, map(_plain, keras.tree.flatten(outputs)), strict=True))
        after = [scope.get_current_value(variable) for variable, _ in given]
    changed = {
        key: now for key, then, now in zip(variables, before, after, strict=True) if now is not then
    }
    return found, changed


def _call(node: graph.Node, tensors: Mapping[int, Any], training: bool) -> Any:
    marked = {tensor: _mark(tensors[tensor], tensors[mask]) for tensor, mask in node.masks.items()}
    given = (node.arguments, dict(node.keywords))
    arguments, keywords = _filled(given, {**tensors, **marked})
    match node.kind:
        case graph.Kind.LAYER:
            return node.calls(*arguments, **keywords, training=training)
        case graph.Kind.OPERATION:
            return node.calls(*arguments, **keywords)
        case graph.Kind.MASK:
            return node.calls.compute_mask(*arguments)


def _filled(value: Any, tensors: Mapping[int, Any]) -> Any:
    return keras.tree.map_structure(
        lambda one: tensors[one.tensor] if isinstance(one, graph.Edge) else one, value
    )


class _Mark(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Lets Keras hang the mask that it is given on a tensor; some layers read it there only."""

    def __init__(self) -> None:
        super().__init__(name="mark", autocast=False)
        self.supports_masking = True

    def call(self, tensor: Any, mask: Any = None) -> Any:
        """Give a tensor that nobody else has."""
        return tf.identity(tensor)


def _mark(tensor: Any, mask: Any) -> Any:
    return _Mark()(tensor, mask=mask)


def _plain(tensor: Any) -> Any:
    """Give a tensor without the mask that Keras hung on it, as one that came over a network."""
    return None if tensor is None else tf.identity(tensor)


def _as_wanted(value: Any, wanted: graph.Tensor) -> Any:
    """Give a tensor the type and rank of the model's input, as Keras does."""
    tensor = keras.ops.convert_to_tensor(value, dtype=wanted.dtype)
    surplus = len(tensor.shape) - len(wanted.shape)
    if surplus == 1 and tensor.shape[-1] == 1:
        return keras.ops.squeeze(tensor, axis=-1)
    if surplus == -1 and wanted.shape[-1] == 1:
        return keras.ops.expand_dims(tensor, axis=-1)
    return tensor
