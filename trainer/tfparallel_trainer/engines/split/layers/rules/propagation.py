"""Layers that work by element, or leave a dimension unchanged, keep their input's layout.

Dropout and noise do, too.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout
from tfparallel_trainer.engines.split.layers.rules import local_layers, registry
from tfparallel_trainer.engines.split.model import graph, operations


class ElementwiseRule(registry.Rule):
    """Each rank computes the elements that it has; inputs are broadcast as Keras does."""

    sharding = "parts"

    def split(self, call: registry.Call) -> registry.Split:
        """Give all inputs the layout of the sharded one."""
        _check_constants(call)
        tensor_layout = call.whole(call.result)
        operands = call.node.operands
        for tensor in operands:
            cuts = call.input_layouts[tensor].cuts
            for index, cut in enumerate(cuts, start=len(tensor_layout.cuts) - len(cuts)):
                if (
                    cut is not None
                    and tensor_layout.dimension(cut.axis) is None
                    and not tensor_layout.cuts[index]
                ):
                    tensor_layout = tensor_layout.put(index, cut)
        self._check(call, tensor_layout)
        wants = {tensor: _like(tensor_layout, call.dimensions(tensor)) for tensor in operands}
        return registry.Split(
            wants=wants,
            gives=dict.fromkeys(call.node.outputs, tensor_layout),
            costs=tuple(
                cost
                for tensor in operands
                for axis in _missing(tensor_layout, wants[tensor])
                for cost in call.sends(
                    communication.CollectiveKind.SUM,
                    axis,
                    call.backward(tensor),
                    wants[tensor].largest(call.dimensions(tensor)),
                    call.model.tensors[tensor].dtype,
                )
            ),
        )

    def compute(self, local: registry.Local) -> Sequence[Any]:
        tensor_layout = local.split.gives[local.node.outputs[0]]
        tensors = dict(local.tensors)
        for number in local.node.operands:
            for axis in _missing(tensor_layout, local.split.wants[number]):
                tensors[number] = adjoint.copy_to_group(local.groups[axis], tensors[number])
        return local_layers.call_layer(dataclasses.replace(local, tensors=tensors))

    def _check(self, call: registry.Call, tensor_layout: layout.Layout) -> None:
        """Raise a CannotSplitError if parts are not sufficient."""
        if tensor_layout.is_whole:
            raise registry.CannotSplitError("its inputs are whole")


class ActivationRule(ElementwiseRule):
    """An activation, which may need a whole dimension; it has no masks."""

    def _check(self, call: registry.Call, tensor_layout: layout.Layout) -> None:
        super()._check(call, tensor_layout)
        layer = call.layer
        if call.node.masks and isinstance(layer, keras.layers.Softmax):
            raise registry.CannotSplitError("its input has a mask")
        activation = getattr(layer, "activation", None)
        if isinstance(layer, keras.layers.Softmax) or operations.is_along_channels(activation):
            axis = getattr(layer, "axis", -1)
            if not isinstance(axis, int) or tensor_layout.cuts[axis] is not None:
                raise registry.CannotSplitError("it needs the dimension whole that is cut")
        elif not operations.is_elementwise(activation):
            raise registry.CannotSplitError(
                f"its activation {operations.label(activation)} may need all of its input"
            )


class ConcatenateRule(ElementwiseRule):
    """Concatenated inputs; the concatenated dimension is gathered, others stay sharded."""

    def split(self, call: registry.Call) -> registry.Split:
        """Give all inputs the layout of the one that is sharded in another dimension."""
        _check_constants(call)
        axis = call.layer.axis % len(call.dimensions(call.result))
        operands = call.node.operands
        free = [call.input_layouts[number].put(axis, None) for number in operands]
        common_layout = next(
            (tensor_layout for tensor_layout in free if not tensor_layout.is_whole), None
        )
        if common_layout is None:
            raise registry.CannotSplitError(
                "its inputs may be sharded along the concatenated dimension only"
            )
        return registry.Split(
            wants=dict.fromkeys(operands, common_layout), gives={call.result: common_layout}
        )


class RandomRule(registry.Rule):
    """Dropout and noise: each rank draws for its part, from a seed of its own part.

    So parts of one tensor differ, ranks with the same part draw the same numbers, and these follow
    from the layer's seed. They differ from those of the unsplit layer, unless the user asks for the
    latter. Then each rank draws for the full tensor, and keeps its part.
    """

    sharding = "parts"

    def __init__(self, neutral: float) -> None:
        self._neutral = neutral
        """The neutral value of the layer's random factors (1.0) or summands (0.0)."""

    def split(self, call: registry.Call) -> registry.Split:
        input_layout = call.input_layouts[call.first]
        if input_layout.is_whole:
            raise registry.CannotSplitError("its input is whole")
        if getattr(call.layer, "noise_shape", None) is not None:
            raise registry.CannotSplitError("it has a noise_shape")
        return call.split(input_layout, input_layout)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        tensor_layout = local.split.wants[local.node.inputs[0]]
        if local.same_dropout:
            return [self._as_whole(local, tensor_layout)]
        if isinstance(
            local.layer, _SPATIAL
        ):  # draws once for all positions of an example's channel
            data_format = getattr(local.layer, "data_format", "channels_last")
            channels = 1 if data_format == "channels_first" else -1
            tensor_layout = layout.whole(len(tensor_layout.cuts)).put(
                channels, tensor_layout.cuts[channels]
            )
        return local_layers.call_layer(local, tensor_layout)

    def _as_whole(self, local: registry.Local, tensor_layout: layout.Layout) -> Any:
        first = local.node.inputs[0]
        tensor = local.first
        full_dims = local.model.tensors[first].shape
        dims = tuple(
            here if size is None else size
            for here, size in zip(keras.ops.shape(tensor), full_dims, strict=True)
        )
        neutral = keras.ops.full(dims, self._neutral, tensor.dtype)
        (drawn,) = local_layers.call_layer(dataclasses.replace(local, tensors={first: neutral}))
        part = drawn[tensor_layout.part(local.place())]
        return tensor * part if self._neutral else tensor + part


class TransposeRule(local_layers.LocalLayerRule):
    """Transposed dimensions."""

    sharding = "parts"

    def __init__(self, order: Callable[[Any, int], Sequence[int]]) -> None:
        self._order = order

    def split(self, call: registry.Call) -> registry.Split:
        """Move cuts with their dimensions."""
        input_layout = call.input_layouts[call.first]
        if input_layout.is_whole:
            raise registry.CannotSplitError("its input is whole")
        order = self._order(call.layer, len(input_layout.cuts))
        cuts = tuple(input_layout.cuts[index] for index in order)
        return call.split(input_layout, layout.Layout(cuts))


class GetItemRule(local_layers.LocalLayerRule):
    """Indices and slices, as in x[:, 0]: a dimension that is taken in full may be sharded."""

    sharding = "parts"

    def split(self, call: registry.Call) -> registry.Split:
        """Keep the cuts of dimensions that are taken in full."""
        chosen = call.node.arguments[1]
        keys = list(chosen) if isinstance(chosen, (tuple, list)) else [chosen]
        rank = len(call.dimensions(call.first))
        if any(not isinstance(item, (int, slice, type(None), type(...))) for item in keys):
            raise registry.CannotSplitError("it takes other things than numbers and slices")
        full_slices = [slice(None)] * (
            rank - sum(item is not None and item is not ... for item in keys)
        )
        at = keys.index(...) if ... in keys else len(keys)
        keys = [*keys[:at], *full_slices, *keys[at + 1 :]]
        input_layout, output_layout = call.whole(call.first), call.whole(call.result)
        position = there = 0
        for item in keys:
            cut = None if item is None else call.input_layouts[call.first].cuts[position]
            if cut is not None and item == slice(None):
                input_layout = input_layout.put(position, cut)
                output_layout = output_layout.put(there, cut)
            position += item is not None
            there += not isinstance(item, int)
        if input_layout.is_whole:
            raise registry.CannotSplitError("what is cut in its input is chosen from")
        return call.split(input_layout, output_layout)


class ReshapeRule(registry.Rule):
    """A reshape keeps a cut if as many elements as before follow the sharded dimension."""

    sharding = "parts"

    def split(self, call: registry.Call) -> registry.Split:
        """Find the dimensions that have the cuts after the reshape."""
        old, new = call.dimensions(call.first), call.dimensions(call.result)
        if new.count(None) > 1:
            raise registry.CannotSplitError("only the data would tell its shape")
        input_layout, output_layout = call.whole(call.first), call.whole(call.result)
        for index, cut in enumerate(call.input_layouts[call.first].cuts):
            there = None if cut is None else survives(old, new, index, cut)
            if cut is not None and there is not None:
                input_layout = input_layout.put(index, cut)
                output_layout = output_layout.put(*there)
        if input_layout.is_whole:
            raise registry.CannotSplitError("what is cut in its input does not survive in it")
        return call.split(input_layout, output_layout)

    def compute(self, local: registry.Local) -> Sequence[Any]:
        number = local.node.outputs[0]
        dims = local.model.tensors[number].shape
        local_dims = local.split.gives[number].local(dims, local.place())
        return [
            keras.ops.reshape(local.first, [-1 if size is None else size for size in local_dims])
        ]


def survives(
    old: Sequence[int | None], new: Sequence[int | None], index: int, cut: layout.Cut
) -> tuple[int, layout.Cut] | None:
    """Return the position of a dimension's cut after a reshape.

    None: the cut is lost. A cut remains if the rows of some dimension have as many elements as
    before. Only then each rank already has its elements. Dimensions before it, such as the batch,
    may be merged or divided.
    """
    inner = _elements(old[index + 1 :])
    for there in range(len(new)):
        within = _elements(new[there:])
        if inner is not None and within == cut.size * inner and new[there] != 1:
            try:
                return there, cut.times(inner).coarsen(within // (new[there] or 1))
            except ValueError:  # a border is within a row
                return None
    return None


def _elements(dims: Sequence[int | None]) -> int | None:
    """Number of elements. None: it depends on the data."""
    return None if None in dims else math.prod(size or 0 for size in dims)


def _check_constants(call: registry.Call) -> None:
    """Refuse (CannotSplitError) a constant of several numbers, which parts would have to share.

    Constants are in arguments, or in attributes of a layer or an operation.
    """
    node = call.node
    names = _NUMBERS if node.kind is graph.NodeKind.LAYER else vars(call.layer)
    attributes = [getattr(call.layer, name, None) for name in names if not name.startswith("_")]
    constants = _constants((node.arguments, dict(node.keywords)))
    if any(np.ndim(item) > 0 for item in (*attributes, *constants)):
        raise registry.CannotSplitError("it computes with a constant that is no single number")


def _constants(value: Any) -> Iterator[Any]:
    """The nested arguments that contain no tensor of the graph."""
    leaves = keras.tree.flatten(value)
    if not any(isinstance(leaf, graph.Edge) for leaf in leaves):
        yield value
        return
    parts = value.values() if isinstance(value, Mapping) else value
    for item in () if isinstance(value, graph.Edge) else parts:
        yield from _constants(item)


def _like(tensor_layout: layout.Layout, dims: Sequence[int | None]) -> layout.Layout:
    """The layout of an input, from that of the result; broadcast dimensions stay replicated."""
    pairs = zip(tensor_layout.cuts[len(tensor_layout.cuts) - len(dims) :], dims, strict=True)
    return layout.Layout(tuple(cut if cut and size == cut.size else None for cut, size in pairs))


def _missing(tensor_layout: layout.Layout, input_layout: layout.Layout) -> Iterator[shape.Axis]:
    """The axes over which a tensor is broadcast: each rank has a summand of its gradient."""
    return (cut.axis for cut in tensor_layout.cuts if cut and cut.axis not in input_layout.axes)


def _axes(transpose: Any, rank: int) -> Sequence[int]:
    return operations.axes(range(rank)[::-1] if transpose.axes is None else transpose.axes, rank)


_SPATIAL = operations.layers("SpatialDropout*D")

_NUMBERS = ("offset", "scale")
"""Attributes of elementwise layers that may consist of several numbers."""

RULES: registry.Rules = {
    "Activation ELU LeakyReLU ReLU Softmax": (ActivationRule(),),
    "Add Average Identity Maximum Minimum Multiply Rescaling Subtract": (ElementwiseRule(),),
    "Flatten Reshape": (ReshapeRule(),),
    "Concatenate": (ConcatenateRule(),),
    "Dropout GaussianDropout SpatialDropout*D": (RandomRule(neutral=1.0),),
    "GaussianNoise": (RandomRule(neutral=0.0),),
    "Permute": (TransposeRule(lambda permute, _: (0, *permute.dims)),),
}

OPERATIONS: dict[str, tuple[registry.Rule, ...]] = {
    **dict.fromkeys(operations.ELEMENTWISE, (ElementwiseRule(),)),
    "getitem": (GetItemRule(),),
    "reshape": (ReshapeRule(),),
    "transpose": (TransposeRule(_axes),),
}
