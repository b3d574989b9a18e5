"""A layer whose group divides the examples: each rank runs the whole layer on some of them.

This is data parallelism within a group that splits layers, for a layer that cannot be split in
another way, or that computes much and gives little: what it gives is gathered. It is taken only
when it is asked for.
"""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.mesh import shape
from tfparallel_trainer.split.layers import adjoint, layout, traffic
from tfparallel_trainer.split.layers.rules import dense, registry
from tfparallel_trainer.split.model import execution
from tfparallel_trainer.split.pipeline import schedule


class Data(registry.Rule):
    """Each rank computes some of the examples; before and after all ranks have all of them."""

    way = "data"
    only_asked = True

    def split(self, call: registry.Call) -> registry.Split:
        """Keep everything whole but the work."""
        layer, node = call.layer, call.node
        dense.check(layer)
        if any(getattr(layer, name, 0) for name in ("dropout", "recurrent_dropout", "stateful")):
            raise registry.CannotSplitError(
                "it draws random numbers or keeps a state: let dropout be 0 and stateful False, "
                "or replicate the layer"
            )
        fixed = [one for one in _tensors(node) if call.dimensions(one)[:1] != (None,)]
        axes = [axis for axis in layout.AXES if call.ranks(axis) > 1]
        if fixed or not axes:
            raise registry.CannotSplitError(
                "there is one rank, or something that it takes or gives does not begin with the "
                "examples"
            )
        return registry.Split(
            variables={
                key: registry.Shard(
                    layout.whole(len(call.model.variables[key].shape)), frozenset(axes)
                )
                for key in node.variables
            },
            costs=tuple(_costs(call, axes)),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        """Run the layer on the rank's examples, and gather what it gives."""
        node = local.node
        batch = local.tensors[node.inputs[0]].shape[0]
        cuts: list[tuple[shape.Axis, layout.Cut]] = []
        own = dict(local.tensors)
        for axis, group in local.groups.items():
            if group.size > 1:
                cuts.append((axis, _cut(node.name, axis, batch, group.size)))
                batch = cuts[-1][1].sizes[group.index]
                for one, tensor in own.items():
                    own[one] = adjoint.take(group, tensor, 0, cuts[-1][1])
        part = execution.run_nodes(local.model, (node,), own, local.variables, local.training)
        made = [part.tensors[one] for one in node.outputs]
        for axis, cut in reversed(cuts):
            made = [adjoint.gather(local.groups[axis], one, 0, cut) for one in made]
        return made


_EACH_ALONE = """
Conv1D Conv2D Conv3D Conv1DTranspose Conv2DTranspose Conv3DTranspose DepthwiseConv1D
DepthwiseConv2D SeparableConv1D SeparableConv2D Dense EinsumDense Embedding GRU GroupNormalization
GroupQueryAttention LSTM LayerNormalization MultiHeadAttention RMSNormalization SimpleRNN
"""
"""Layers that compute each example by itself."""

RULES: dict[type, tuple[registry.Rule, ...]] = {
    getattr(keras.layers, name): (Data(),) for name in _EACH_ALONE.split()
}


def _tensors(node: Any) -> Iterator[int]:
    return itertools.chain(node.inputs, node.outputs)


def _costs(call: registry.Call, axes: Sequence[shape.Axis]) -> Iterator[traffic.Traffic]:
    """Outputs are gathered on the way forward, and gradients of the inputs on the way back."""
    gathered = [(schedule.Work.FORWARD, one) for one in call.node.outputs]
    gathered += [(schedule.Work.BACKWARD, one) for one in call.node.inputs if one in call.trained]
    parts = 1
    for axis in axes:
        parts *= call.ranks(axis)
        for work, one in gathered:
            yield traffic.Traffic(
                kind=traffic.Kind.GATHER,
                axis=axis,
                work=work,
                shape=call.dimensions(one),
                dtype=traffic.carried(call.model.tensors[one].dtype),
                parts=parts,
            )


def _cut(name: str, axis: shape.Axis, batch: int, ranks: int) -> layout.Cut:
    """Divide the examples of a microbatch.

    Raises:
        BadConfigurationError: there are fewer than ranks.
    """
    if batch < ranks:
        raise errors.BadConfigurationError(
            f"The layer {name} is to be split by data over mesh.{axis}, which is {ranks}, but a "
            f"microbatch has {batch} examples: give a larger batch or fewer microbatches."
        )
    return layout.even(axis, batch, ranks)
