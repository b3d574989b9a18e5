"""Layers that are replicated, and that each rank runs on some of the examples or positions.

Examples are divided on request: this is data parallelism within a group that splits layers. It
suits a layer that cannot be split in another way, or whose output is small for its work, because
outputs are gathered. The last microbatch of an epoch may have fewer examples than ranks. It is
padded with its last example, and the results of the padding are dropped. The layer computes each
example by itself, so padding changes neither results nor gradients. Positions of an image or a
sequence stay divided as they are.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import dense, local_layers, registry, spatial
from tfparallel_trainer.engines.split.model import interpreter, operations
from tfparallel_trainer.engines.split.pipeline import schedule


class DataRule(registry.Rule):
    """Each rank computes some of the examples; inputs and outputs are replicated."""

    sharding = "data"
    only_asked = True

    def split(self, call: registry.Call) -> registry.Split:
        """Replicate all tensors, and divide only the work."""
        layer, node = call.layer, call.node
        dense.check(layer)
        if any(getattr(layer, name, 0) for name in ("dropout", "recurrent_dropout", "stateful")):
            raise registry.CannotSplitError(
                "it draws random numbers or keeps a state: let dropout be 0 and stateful False, "
                "or replicate the layer"
            )
        tensors = [call.model.tensors[number] for number in (*node.inputs, *node.outputs)]
        axes = [axis for axis in layout.AXES if call.ranks(axis) > 1]
        if {(graph_tensor.batch, graph_tensor.rows) for graph_tensor in tensors} != {
            (0, tensors[0].rows)
        } or not axes:
            raise registry.CannotSplitError(
                "there is one rank, or something that it takes or gives does not begin with the "
                "examples"
            )
        return call.split(variables=call.unsharded(frozenset(axes)), costs=_costs(call, axes))

    def compute(self, local: registry.Local) -> Sequence[Any]:
        node = local.node
        groups = {axis: group for axis, group in local.groups.items() if group.size > 1}
        examples = local.tensors[node.inputs[0]].shape[0]
        batch = max(examples, math.prod(group.size for group in groups.values()))
        shards = {number: _filled(tensor, batch) for number, tensor in local.tensors.items()}
        cuts: dict[shape.Axis, layout.Cut] = {}
        for axis, group in groups.items():
            cuts[axis] = layout.even(axis, batch, group.size)
            batch = cuts[axis].sizes[group.index]
            shards = {
                number: adjoint.slice_to_group(group, part, 0, cuts[axis])
                for number, part in shards.items()
            }
        part = interpreter.run_nodes(local.model, (node,), shards, local.variables, local.training)
        outputs = [part.tensors[number] for number in node.outputs]
        for axis, cut in reversed(cuts.items()):
            outputs = [adjoint.gather(groups[axis], output, 0, cut) for output in outputs]
        return [output[:examples] for output in outputs]


class LocalRowsRule(local_layers.LocalLayerRule):
    """Each rank computes the rows that it has."""

    sharding = "rows"
    axes = (spatial.AXIS,)

    def __init__(self, is_alone: Callable[[Any, int], bool]) -> None:
        """Take a function of layer and tensor rank: whether rows are computed alone."""
        self._is_alone = is_alone

    def split(self, call: registry.Call) -> registry.Split:
        layer, rank = call.layer, len(call.dimensions(call.first))
        dense.check(layer)
        spatial.check_activation(call)
        if call.node.masks or not self._is_alone(layer, rank):
            raise registry.CannotSplitError(
                "it has a mask, or what it computes of a row depends on others"
            )
        tensor_layout = spatial.as_it_comes(call, channels=False)
        return call.split(tensor_layout, tensor_layout, call.unsharded(spatial.SUMMED))


def _is_along_others(layer: Any, rank: int) -> bool:
    return not {0, spatial.ROWS}.intersection(operations.axes(layer.axis, rank))


_EACH_ALONE = """
Conv*D Conv*DTranspose DepthwiseConv1D DepthwiseConv2D SeparableConv1D SeparableConv2D EinsumDense
Embedding GRU GroupNormalization GroupQueryAttention LSTM LayerNormalization MultiHeadAttention
RMSNormalization SimpleRNN
"""
"""Layers that compute each example by itself."""

RULES: registry.Rules = {
    _EACH_ALONE: (DataRule(),),
    "Dense": (LocalRowsRule(lambda _, rank: rank > 2), DataRule()),
    "PReLU": (LocalRowsRule(lambda prelu, _: spatial.ROWS in (prelu.shared_axes or ())),),
    "UnitNormalization": (LocalRowsRule(_is_along_others),),
}


def _costs(call: registry.Call, axes: Sequence[shape.Axis]) -> Iterator[communication.Traffic]:
    """The cost of gathering outputs, and of gathering gradients of the inputs."""
    tensors = call.model.tensors
    gathered = [(schedule.Pass.FORWARD, tensors[number]) for number in call.node.outputs]
    gathered += [
        (work, tensors[number]) for number in call.node.inputs for work in call.backward(number)
    ]
    parts = 1
    for axis in axes:
        parts *= call.ranks(axis)
        for work, tensor in gathered:
            for traffic in call.sends(
                communication.CollectiveKind.GATHER, axis, [work], tensor.shape, tensor.dtype
            ):
                yield dataclasses.replace(traffic, parts=parts)


def _filled(tensor: tf.Tensor, batch: int) -> tf.Tensor:
    """Repeat the last example up to the requested number."""
    missing = batch - tensor.shape[0]
    if not missing:
        return tensor
    return tf.concat([tensor, tf.repeat(tensor[-1:], missing, axis=0)], 0)
