"""Common parts of the rules that divide the rows of images.

Rows are dimension 1: the height, the length in one dimension, the first of three. Only
channels_last is divided. A convolution takes a tensor with divided rows as it is, and divides a
replicated one, which costs nothing in the forward pass. Other layers keep the division of their
input. The channels of those that work on each channel by itself may be divided over the tensor axis
at the same time.
"""

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, communication, layout, row_division
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import operations
from tfparallel_trainer.engines.split.pipeline import schedule

AXIS = shape.Axis.SPATIAL
ROWS = 1
"""The dimension that is divided."""

SUMMED = frozenset({AXIS})
"""The gradient of a replicated variable is a sum over ranks, each with the gradient of its rows."""


def check(call: registry.Call) -> None:
    """Refuse (CannotSplitError) an input that is not an image with divisible rows."""
    layer, dims = call.layer, call.dimensions(call.first)
    if getattr(layer, "data_format", "channels_last") != "channels_last":
        raise registry.CannotSplitError(
            f"its data_format is {layer.data_format}: give channels_last, or replicate the layer"
        )
    if call.node.masks:
        raise registry.CannotSplitError(
            "its input has a mask, whose rows are not divided: do without, or replicate the layer"
        )
    if len(dims) < 3 or None in dims[1:]:
        raise registry.CannotSplitError(
            f"its input has the shape {dims}: let it be an image, with all sizes but the first "
            "given, or replicate the layer"
        )
    if call.ranks(AXIS) > shape.MAX_PAIRED:
        raise registry.CannotSplitError(
            f"mesh.spatial is {call.ranks(AXIS)}: give at most {shape.MAX_PAIRED}"
        )


def check_activation(call: registry.Call) -> None:
    """Refuse (CannotSplitError) an activation that is not known to work on each row by itself."""
    activation = getattr(call.layer, "activation", None)
    if not operations.is_by_place(activation):
        raise registry.CannotSplitError(
            f"its activation {operations.label(activation)} may need all rows: make the "
            "activation a layer of its own, or replicate the layer"
        )


def sharded_rows(call: registry.Call) -> layout.Layout:
    """The layout of a first input with divided rows, if these suffice, and all channels."""
    input_layout = call.input_layouts[call.first].without(shape.Axis.TENSOR)
    if call.find_cut(call.first, ROWS, AXIS):
        return input_layout
    ranks, size = call.ranks(AXIS), call.dimensions(call.first)[ROWS]
    if size is None or size < ranks:
        raise registry.CannotSplitError(
            f"its input has {size} rows, and mesh.spatial is {ranks}: let there be at least as "
            "many rows as ranks, or replicate the layer"
        )
    return input_layout.without(AXIS).put(ROWS, _cut(row_division.divide(size, ranks)))


class PerChannelRule(registry.Rule):
    """A rule for layers that work on each channel by itself, and keep the division of their input.

    Each such layer has two of these rules: for divided rows with channels as they are, and
    conversely.
    """

    def __init__(self, axis: shape.Axis) -> None:
        """Take the axis that the rule requires."""
        self.sharding = "rows" if axis is AXIS else "channels"
        self.axes = (axis,)

    @classmethod
    def pair(cls, *arguments: Any) -> tuple[registry.Rule, ...]:
        """The rule for each of the two axes."""
        return tuple(cls(axis, *arguments) for axis in layout.AXES)


PlanOf = Callable[[Any, int, row_division.Spans], row_division.RowPlan]
"""Plans a layer along a dimension, counted from that of the rows, from the division of the
input."""


class HaloRule(PerChannelRule):
    """Layers whose rows depend on near rows: each rank computes from its own rows and its halo."""

    def __init__(self, axis: shape.Axis, plan_of: PlanOf) -> None:
        super().__init__(axis)
        self._plan_of = plan_of

    def split(self, call: registry.Call) -> registry.Split:
        check(call)
        input_layout = as_it_comes(call)
        plan = planned(call, input_layout, self._plan_of)
        return call.split(
            input_layout, output(input_layout, plan), costs=halos(call, plan, input_layout)
        )


def as_it_comes(call: registry.Call, *, channels: bool = True) -> layout.Layout:
    """The layout of a first input that is already divided: its rows, and channels if allowed."""
    input_layout = call.input_layouts[call.first]
    required_layout = layout.whole(len(input_layout.cuts))
    has_rows = len(input_layout.cuts) > ROWS + 1  # else that dimension has the channels
    if has_rows and (cut := call.find_cut(call.first, ROWS, AXIS)):
        required_layout = required_layout.put(ROWS, cut)
    if channels and (cut := call.find_cut(call.first, -1, shape.Axis.TENSOR)):
        required_layout = required_layout.put(-1, cut)
    if required_layout.is_whole:
        raise registry.CannotSplitError("its input comes whole")
    return required_layout


def owned(tensor_layout: layout.Layout, dims: Sequence[int | None]) -> row_division.Spans:
    """The rows of a tensor on each rank; one rank has all if they are not divided."""
    cut = tensor_layout.cuts[ROWS]
    ends = [0, *itertools.accumulate((dims[ROWS] or 0,) if cut is None else cut.sizes)]
    return tuple(itertools.starmap(range, itertools.pairwise(ends)))


def planned(
    call: registry.Call, tensor_layout: layout.Layout, plan_of: PlanOf, free: bool = False
) -> row_division.RowPlan:
    """Plan a layer on its divided input; if it is free, each rank has all rows and sends none."""
    make_plan = functools.partial(plan_of, call.layer, 0)
    spans = owned(tensor_layout, call.dimensions(call.first))
    try:
        plan = make_plan(spans)
    except ValueError as error:
        raise registry.CannotSplitError(
            f"mesh.spatial is {len(spans)}, and of its output {error}: give at most "
            f"{_most_ranks(make_plan, spans)} spatial ranks, or replicate the layer"
        ) from error
    if plan.reach > 1 and not free:
        least = min(map(len, spans))
        raise registry.CannotSplitError(
            f"mesh.spatial is {len(spans)}, and its halo is wider than a shard. Ranks have as few "
            f"as {least} of the {spans[-1].stop} rows, and need some of ranks that are "
            f"{plan.reach} away. Give at most {_most_ranks(make_plan, spans)} spatial "
            "ranks, or replicate the layer"
        )
    return plan


def _most_ranks(
    make_plan: Callable[[row_division.Spans], row_division.RowPlan], spans: row_division.Spans
) -> int:
    """The largest smaller number of ranks with which only neighbours exchange rows."""
    for ranks in range(len(spans) - 1, 1, -1):
        try:
            if make_plan(row_division.divide(spans[-1].stop, ranks)).reach <= 1:
                return ranks
        except ValueError:
            continue
    return 1


def output(tensor_layout: layout.Layout, plan: row_division.RowPlan) -> layout.Layout:
    """The layout of an output: that of the input, but with the plan's rows."""
    return tensor_layout if len(plan.owned) == 1 else tensor_layout.put(ROWS, _cut(plan.outputs))


def halos(
    call: registry.Call, plan: row_division.RowPlan, tensor_layout: layout.Layout
) -> Iterator[communication.Traffic]:
    """The cost of exchanged rows, for the rank that sends most of them."""
    if tensor_layout.is_whole:  # each rank has all rows
        return
    counts = {schedule.Pass.FORWARD: plan.sent, schedule.Pass.BACKWARD: plan.taken}
    examples, _, *other_dims = tensor_layout.largest(call.dimensions(call.first))
    for work in (schedule.Pass.FORWARD, *call.backward(call.first)):
        if most := max(map(counts[work], range(len(plan.owned)))):
            yield from call.sends(
                communication.CollectiveKind.HALO, AXIS, [work], (examples, most, *other_dims)
            )


def spans_of(local: registry.Local) -> row_division.Spans:
    """The rows of the first input on each rank, as if it were divided."""
    first = local.node.inputs[0]
    tensor_layout, dims = local.split.wants[first], local.model.tensors[first].shape
    if _is_taken(local):
        return row_division.divide(dims[ROWS] or 0, local.groups[AXIS].size)
    return owned(tensor_layout, dims)


def brought(
    local: registry.Local, tensor: tf.Tensor, plan_of: PlanOf
) -> tuple[tf.Tensor, list[row_division.Share]]:
    """Add halos to a tensor [examples, rows, …, channels]; returns it with the rank's shares."""
    group, plan = local.groups[AXIS], plan_of(local.layer, 0, spans_of(local))
    is_whole = len(plan.shares) == 1  # channels are divided, so every rank has all rows
    share = plan.shares[0 if is_whole else group.index]
    if is_whole or _is_taken(local):
        image = tensor[:, share.input.start : share.input.stop]
    else:
        image = adjoint.exchange_halos(group, tensor, plan)
    others = enumerate(image.shape[ROWS + 1 : -1], start=1)
    plans = [plan_of(local.layer, index, (range(size),)) for index, size in others]
    return image, [share, *(share.shares[0] for share in plans)]


def surrounded(tensor: tf.Tensor, shares: Sequence[row_division.Share], fill: Any = 0) -> tf.Tensor:
    """Pad [examples, rows, …, channels] where the rank's part is at the edge of the image."""
    pads = [(0, 0), *((share.before, share.after) for share in shares)]
    pads += [(0, 0)] * (tensor.shape.rank - len(pads))
    if not any(map(any, pads)):
        return tensor
    return tf.pad(tensor, pads, constant_values=tf.cast(fill, tensor.dtype))


def kept(tensor: tf.Tensor, shares: Sequence[row_division.Share]) -> tf.Tensor:
    """Keep the rows of the rank's output; missing rows become zeros."""
    pads = [(0, 0)]
    for dimension, share in enumerate(shares, ROWS):
        begin, end = max(share.skip, 0), max(share.skip + len(share.output), 0)
        tensor = tensor[(*[slice(None)] * dimension, slice(begin, end))]
        missing = len(share.output) - tensor.shape[dimension]
        before = min(max(-share.skip, 0), missing)
        pads.append((before, missing - before))
    pads += [(0, 0)] * (tensor.shape.rank - len(pads))
    return tf.pad(tensor, pads) if any(map(any, pads)) else tensor


def _is_taken(local: registry.Local) -> bool:
    """Whether a rank takes its rows from a replicated input."""
    first, result = local.node.inputs[0], local.node.outputs[0]
    cut = local.split.gives[result].cuts[ROWS]
    return local.split.wants[first].cuts[ROWS] is None and cut is not None and cut.axis is AXIS


def _cut(spans: row_division.Spans) -> layout.Cut:
    return layout.Cut(AXIS, tuple(map(len, spans)))
