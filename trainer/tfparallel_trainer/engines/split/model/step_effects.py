"""Finds the tensors and weights without a gradient in a step, and the weights that it assigns.

Optimizers skip a weight without a gradient, but not one with a gradient of zeros. So all processes
have to know which tensors have a gradient. And a forward pass may assign weights, once in a step,
however many microbatches it has. For most of Keras' layers both are known; every other call is
traced alone.
"""

import dataclasses
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph, interpreter, operations, recording
from tfparallel_trainer.objective import checks

_WITH_WEIGHTS = (
    "BatchNormalization Conv*D Conv*DTranspose Dense DepthwiseConv1D DepthwiseConv2D EinsumDense "
    "GroupNormalization LayerNormalization PReLU RMSNormalization SeparableConv1D SeparableConv2D"
)
_OF_EXAMPLES = (
    "Activation AveragePooling*D ELU Flatten GlobalAveragePooling*D GlobalMaxPooling*D Identity "
    "LeakyReLU MaxPooling*D Permute ReLU RepeatVector Reshape UpSampling*D ZeroPadding*D"
)
_RANDOM = "Dropout GaussianDropout GaussianNoise SpatialDropout*D"
_MERGING = "Add Average Concatenate Dot Maximum Minimum Multiply Subtract"
SIMPLE = operations.layers(f"{_WITH_WEIGHTS} {_OF_EXAMPLES} {_RANDOM} {_MERGING}")
"""Layers that pass gradients from all outputs to all inputs. They assign only the statistics of
`BatchNormalization`."""
_NAMES = """
elu exponential gelu leakyrelu linear logsoftmax mish relu relu6 selu sigmoid silu softmax softplus
softsign tanh
"""
ACTIVATIONS = frozenset(_NAMES.split())
"""Activations that have a gradient."""
_EXAMPLES = 2
"""Number of examples of a trace with a static batch size."""
_ADDED = -1
"""Represents a node's added losses, in place of the number of a tensor."""

_Source = int | str
"""The number of a tensor, or the key of a weight."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Effects:
    """The effects of a step, the same in all processes."""

    constant_tensors: frozenset[int] = frozenset()
    """Tensors without a gradient of the loss."""
    constant_weights: frozenset[str] = frozenset()
    """Keys of the trained weights that have no gradient."""
    assigned: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Keys of weights that the forward pass assigns, independently of the examples, with their
    nodes."""


@dataclasses.dataclass(frozen=True, slots=True)
class NodeEffects:
    """The effects of one call."""

    sources: Mapping[int, frozenset[_Source]]
    """For each output of the node, the tensors and keys of weights to which gradients go."""
    assigned: Mapping[str, bool]
    """Keys of the weights that it assigns, and whether the new value depends on the examples."""


def find_effects(model: graph.Graph, outputs: Collection[int], *, is_divided: bool) -> Effects:
    """Find the effects of a step on a model.

    A weight that takes a gradient as its value is a UserCodeError. If a batch is divided, so is a
    weight whose new value depends on the examples, unless BatchNormalization assigns it.

    Args:
        outputs: the output tensors that have a loss.
        is_divided: whether a mesh divides a batch, over its data axis or into microbatches.
    """
    tensors, weights = set(outputs), set[str]()
    assigned: dict[str, str] = {}
    for node in reversed(model.nodes):
        _check_overwritten(model, node)
        effects = known(model, node) or traced(model, node)
        for key, depends in effects.assigned.items():
            if depends and is_divided:
                raise errors.UserCodeError(
                    f"{node.name} assigns {model.variables[key].path} by the examples of a batch, "
                    "which a mesh divides over its data axis and into microbatches. Let what it "
                    "assigns not depend on the examples, or let mesh.data and mesh.microbatches "
                    "be 1.",
                    function="build_model",
                )
            if not depends:
                assigned[key] = node.name
        for target, sources in effects.sources.items():
            if target == _ADDED or target in tensors:
                tensors |= {number for number in sources if isinstance(number, int)}
                weights |= {key for key in sources if isinstance(key, str)}
    return Effects(
        constant_tensors=frozenset(range(len(model.tensors))) - tensors,
        constant_weights=frozenset(_trained(model, model.variables)) - weights,
        assigned=assigned,
    )


def _check_overwritten(model: graph.Graph, node: graph.Node) -> None:
    for key in node.variables:
        variable = model.variables[key]
        if variable.overwrite_with_gradient:
            raise errors.UserCodeError(
                f"{node.name} trains with 8-bit floats: {variable.path} takes a gradient as its "
                "value, and parts of a batch would have to agree on it. Leave out "
                "quantize('float8'), or train on one device with MultiWorkerMirrored.",
                function="build_model",
            )


def _trained(model: graph.Graph, keys: Collection[str]) -> list[str]:
    return [key for key in keys if model.variables[key].trainable]


def _sources(model: graph.Graph, node: graph.Node) -> list[_Source]:
    """The inputs and weights of a node that may have a gradient."""
    return [*_real(model, node.inputs), *_trained(model, node.variables)]


def _real(model: graph.Graph, tensors: Sequence[int]) -> list[int]:
    return [number for number in tensors if model.tensors[number].is_real]


def known(model: graph.Graph, node: graph.Node) -> NodeEffects | None:
    """The effects of a node, if they are known without a trace."""
    targets = _real(model, node.outputs)
    if node.kind is graph.NodeKind.MASK or not (targets or node.variables):
        return NodeEffects({}, {})
    if node.kind is graph.NodeKind.OPERATION or type(node.calls) not in SIMPLE:
        return None
    activation = getattr(node.calls, "activation", None)
    if activation is not None and operations.name_of(activation) not in ACTIVATIONS:
        return None
    sources = frozenset(_sources(model, node))
    sources_by_target = dict.fromkeys(targets, sources)
    if getattr(node.calls, "activity_regularizer", None) is not None:
        sources_by_target[_ADDED] = sources
    return NodeEffects(sources_by_target, {})


def traced(model: graph.Graph, node: graph.Node) -> NodeEffects:
    """The effects that a trace of a node shows.

    If it fails, the trace of the step will raise the reason.
    """
    for examples in (None, _EXAMPLES):
        try:
            return _trace(model, node, examples)
        except errors.TrainerError:
            raise
        except Exception:  # noqa: S112  # a user's layer may raise anything
            continue
    sources = frozenset(_sources(model, node))
    return NodeEffects(dict.fromkeys(_real(model, node.outputs), sources), {})


def _trace(model: graph.Graph, node: graph.Node, examples: int | None) -> NodeEffects:
    inputs = _sources(model, node)
    sources: dict[int, frozenset[_Source]] = {}
    assigned: dict[str, bool] = {}

    def call(tensors: dict[int, Any], variables: dict[str, Any]) -> None:
        values: dict[Any, Any] = {**tensors, **variables}
        watched = [values[source] for source in inputs]
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(watched)
            part = interpreter.run_nodes(model, [node], tensors, variables, training=True)
            added = [tf.reduce_sum(added_loss) for added_loss in part.added_losses]
            targets = {
                tensor_number: _with_logits(part.tensors[tensor_number])
                for tensor_number in _real(model, node.outputs)
            }
        if added:
            targets[_ADDED] = added
        for target, tensor in targets.items():
            gradients = tape.gradient(tensor, watched)
            pairs = zip(inputs, gradients, strict=True)
            sources[target] = frozenset(
                source for source, gradient in pairs if gradient is not None
            )
        assigned.update(_assigned(model, node, part.changed, tensors, variables))

    tf.function(call, autograph=False).get_concrete_function(
        *interpreter.specs(model, node, examples)
    )
    return NodeEffects(sources, assigned)


def _assigned(
    model: graph.Graph,
    node: graph.Node,
    changed: Mapping[str, Any],
    tensors: Mapping[int, Any],
    variables: Mapping[str, Any],
) -> dict[str, bool]:
    """The keys of the weights that a node assigns, and whether their values depend on the examples.

    Random numbers differ between parts of a batch as examples do.
    """
    gathered = {
        id(variable)
        for layer in checks.layers(node.calls)
        if isinstance(layer, keras.layers.BatchNormalization)
        for variable in layer.variables
    }
    seeds = {key for key in variables if key.startswith(recording.SEED_PREFIX)}
    sources = {
        key: set(_ancestors(value))
        for key, value in changed.items()
        if key not in seeds and id(model.variables[key]) not in gathered
    }
    deciding = {value.op for value in (*tensors.values(), *(variables[key] for key in seeds))}
    for _ in sources:  # a weight may depend on another one, which depends on the examples
        deciding |= {
            variables[key].op for key, ancestors in sources.items() if ancestors & deciding
        }
    return {key: bool(ancestors & deciding) for key, ancestors in sources.items()}


def _with_logits(tensor: Any) -> list[Any]:
    return [value for value in (tensor, interpreter.logits_of(tensor)) if value is not None]


def _ancestors(tensor: Any) -> Iterator[Any]:
    """The operations from which a tensor of a graph is computed, its own included."""
    pending, visited = [tensor.op], set()
    while pending:
        operation = pending.pop()
        if operation not in visited:
            visited.add(operation)
            yield operation
            pending += [input_tensor.op for input_tensor in operation.inputs]
