"""Runs the nodes of a graph on given tensors and given variables; changes neither."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph, operations

_LOGITS, _MASK = "_keras_logits", "_keras_mask"
"""Attribute of a tensor in which Keras keeps logits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Part:
    """The result of running some nodes of a model."""

    tensors: dict[int, Any]
    """All known tensors, by number."""
    changed: dict[str, Any]
    """New values of variables that the run would have changed, by key: statistics and seeds."""
    added_losses: tuple[Any, ...]
    """The losses that layers add in their calls, without regularisation of weights."""


def outputs_of(model: graph.Graph, tensors: Mapping[int, Any]) -> Any:
    """Nest tensors, by number, as the model's outputs."""
    return _filled(model.output_structure, tensors)


def by_number(model: graph.Graph, inputs: Any) -> dict[int, Any]:
    """Cast a model's inputs, nested as Keras takes them, to their types and ranks; by number."""
    structure = model.input_structure
    if isinstance(inputs, dict):
        keys = structure if isinstance(structure, dict) else model.input_names
        missing = [key for key in keys if key not in inputs]
        if missing:
            raise ValueError(f"the input {missing[0]} is not among {', '.join(inputs)}")
        inputs = {key: inputs[key] for key in keys}
        if not isinstance(structure, dict):
            inputs = list(inputs.values())
    leaves = keras.tree.flatten(inputs)
    if len(leaves) != len(model.inputs):
        raise ValueError(f"there are {len(leaves)} inputs, and the model has {len(model.inputs)}")
    return {
        number: _as_input(value, model.tensors[number])
        for number, value in zip(model.inputs, leaves, strict=True)
    }


def run_nodes(
    model: graph.Graph,
    nodes: Iterable[graph.Node],
    tensors: Mapping[int, Any],
    variables: Mapping[str, Any],
    training: bool,
) -> Part:
    """Run some nodes of a graph on tensors from outside, by number."""
    computed = dict(tensors)
    initial_values = [(model.variables[key], value) for key, value in variables.items()]
    added_losses: list[Any] = []
    # Otherwise, Keras would initialise variables that were created without values, as the
    # skeleton's, at the end of the scope.
    with _NodeScope(initial_values, collect_losses=True, initialize_variables=False) as scope:
        before = [scope.get_current_value(variable) for variable, _ in initial_values]
        for node in nodes:
            outputs = dict(
                zip(node.outputs, keras.tree.flatten(_call(node, computed, training)), strict=True)
            )
            _check_masks(model, node, outputs)
            computed |= {number: _plain(tensor) for number, tensor in outputs.items()}
            # The next call of the same layer would remove what this one has added.
            added_losses += scope.losses
            scope.losses.clear()
        after = [scope.get_current_value(variable) for variable, _ in initial_values]
    changed = {
        key: now for key, then, now in zip(variables, before, after, strict=True) if now is not then
    }
    return Part(computed, changed, tuple(added_losses))


class _NodeScope(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """Assigns as TensorFlow's variables do: the assigned value has no gradient, the variable
    has."""

    def add_update(self, update: tuple[Any, Any]) -> None:
        variable, value = update
        before = self.get_current_value(variable)
        if before is not None and value.dtype.is_floating:
            value = _replaced(before, value)
        super().add_update((variable, value))


@tf.custom_gradient  # type: ignore[untyped-decorator]  # TensorFlow has no types
def _replaced(before: tf.Tensor, value: tf.Tensor) -> Any:
    """A value whose gradient goes to the previous value."""
    del before
    return tf.identity(value), lambda gradient: (gradient, None)


def specs(
    model: graph.Graph, node: graph.Node, examples: int | None = None
) -> tuple[dict[int, tf.TensorSpec], dict[str, tf.TensorSpec]]:
    """The inputs, by number, and variables, by key, of a node; of any batch size or one."""
    tensors = {number: model.tensors[number] for number in node.inputs}
    return {
        number: tf.TensorSpec(
            graph_tensor.shape if examples is None else graph_tensor.sized(examples),
            graph_tensor.dtype,
        )
        for number, graph_tensor in tensors.items()
    }, {
        key: tf.TensorSpec(model.variables[key].shape, model.variables[key].dtype)
        for key in node.variables
    }


def check_shape(
    model: graph.Graph, node: graph.Node, tensor: Any, expected: Sequence[int | None]
) -> None:
    """Refuse (UserCodeError) a node that gives another shape than Keras recorded.

    The message names the first node whose trace shows that.
    """
    if tf.TensorShape(expected).is_compatible_with(tensor.shape):
        return
    check_recorded(model, graph.needed(model.nodes, node.outputs))
    raise _misleading(node, tensor.shape, expected)


def check_recorded(model: graph.Graph, nodes: Iterable[graph.Node] | None = None) -> None:
    """Refuse (UserCodeError) the first node whose trace shows another shape than recorded."""
    for node in model.nodes if nodes is None else nodes:
        for unlike in _unlike(model, node):
            raise _misleading(*unlike)


def _misleading(culprit: graph.Node, actual: Any, recorded: Any) -> errors.UserCodeError:
    remedy = (
        "compute that in the data functions, or use the strategy MultiWorkerMirrored"
        if operations.is_of_keras(culprit.calls)
        else "mend its compute_output_shape, or leave it out"
    )
    return errors.UserCodeError(
        f"{culprit.name} gives a tensor of the shape {tuple(actual)}, and Keras was told "
        f"{tuple(recorded)}: {remedy}.",
        function="build_model",
    )


def _unlike(model: graph.Graph, node: graph.Node) -> Iterator[tuple[graph.Node, Any, Any]]:
    """A node, its actual shape and the recorded one, if a trace shows a difference."""

    def call(tensors: dict[int, Any], variables: dict[str, Any]) -> dict[int, Any]:
        return run_nodes(model, [node], tensors, variables, training=False).tensors

    try:
        traced = tf.function(call, autograph=False).get_concrete_function(*specs(model, node))
    except Exception:  # its own inputs may have another shape than recorded
        return
    for number in node.outputs:
        output, recorded = traced.structured_outputs[number], model.tensors[number].shape
        if output is not None and not tf.TensorShape(recorded).is_compatible_with(output.shape):
            yield node, output.shape, recorded


def _call(node: graph.Node, tensors: Mapping[int, Any], training: bool) -> Any:
    masked = {tensor: marked(tensors[tensor], tensors[mask]) for tensor, mask in node.masks.items()}
    structure = (node.arguments, dict(node.keywords))
    arguments, keywords = _filled(structure, {**tensors, **masked})
    match node.kind:
        case graph.NodeKind.LAYER:
            return node.calls(*arguments, **keywords, training=training)
        case graph.NodeKind.OPERATION:
            return node.calls(*arguments, **keywords)
        case graph.NodeKind.MASK:
            return node.calls.compute_mask(*arguments)


def _check_masks(model: graph.Graph, node: graph.Node, outputs: Mapping[int, Any]) -> None:
    """Refuse masks that would be lost if their tensors are sent to another rank."""
    for number, tensor in outputs.items():
        if getattr(tensor, _MASK, None) is not None and number not in model.masked:
            raise errors.UserCodeError(
                f"{node.name} hangs a mask on what it gives, which its compute_mask does not tell, "
                "so a divided model would lose it. Let compute_mask return the mask, or do without "
                "it (mask_zero=False).",
                function="build_model",
            )


def _filled(value: Any, tensors: Mapping[int, Any]) -> Any:
    return keras.tree.map_structure(
        lambda edge: tensors[edge.tensor] if isinstance(edge, graph.Edge) else edge, value
    )


class _Mark(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    """Lets Keras attach a mask to a tensor; some layers read it only there."""

    def __init__(self) -> None:
        super().__init__(name="mark", autocast=False)
        self.supports_masking = True

    def call(self, tensor: Any, mask: Any = None) -> Any:
        """Return a new tensor."""
        return tf.identity(tensor)


def marked(tensor: Any, mask: Any) -> Any:
    """Attach a mask to a tensor, where Keras looks for it."""
    return with_logits(_Mark()(tensor, mask=mask), logits_of(tensor))


def logits_of(tensor: Any) -> Any:
    """The logits from which Keras computed a tensor by softmax or sigmoid;

    None for others. Keras attaches them to the tensor, and computes a crossentropy from them. From
    probabilities, it would be clipped at 1e-7, without a gradient there.
    """
    return getattr(tensor, _LOGITS, None)


def with_logits(tensor: Any, logits: Any) -> Any:
    """Attach logits, if there are any, to a new tensor; returns it."""
    if logits is not None:
        setattr(tensor, _LOGITS, logits)
    return tensor


def _plain(tensor: Any) -> Any:
    """Return a tensor without the mask that Keras attached, as if it came over the network."""
    return None if tensor is None else with_logits(tf.identity(tensor), logits_of(tensor))


def _as_input(value: Any, expected: graph.Tensor) -> Any:
    """Convert a tensor to the type and rank of the model's input, as Keras does."""
    tensor = keras.ops.convert_to_tensor(value, dtype=expected.dtype)
    surplus = len(tensor.shape) - len(expected.shape)
    if surplus == 1 and tensor.shape[-1] == 1:
        return keras.ops.squeeze(tensor, axis=-1)
    if surplus == -1 and expected.shape[-1] == 1:
        return keras.ops.expand_dims(tensor, axis=-1)
    return tensor
