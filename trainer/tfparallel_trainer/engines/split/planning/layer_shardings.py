"""The ways that the rules of layers give, as the planner counts them."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, elementwise, layout, traffic
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning import choose, costs


def shardings_of(model: graph.Graph, optimizer: Any = None) -> choose.ShardingsOf:
    """Give the ways of a model's nodes on any mesh.

    They raise where a degree would divide nothing, where a layer cannot be split as the user chose,
    and where the optimizer cannot train parts.
    """

    def on(mesh: shape.Mesh) -> Sequence[costs.Sharding]:
        degrees = {axis: mesh.degree(axis) for axis in layout.AXES}
        if not model.sharding_overrides and all(degree == 1 for degree in degrees.values()):
            return [costs.REPLICATED] * len(model.nodes)
        assigned = assignment.assign(model, degrees)
        assigned.check()
        if optimizer is not None:
            elementwise.check_optimizer(optimizer, model.variables, assigned.variables)
        return [_sharding(assigned, choice) for choice in assigned.choices]

    return on


def _axes(choice: assignment.Choice) -> Iterator[shape.Axis]:
    """The axes that divide the outputs or the variables of a node."""
    lies = [
        *choice.split.gives.values(),
        *(shard.layout for shard in choice.split.variables.values()),
    ]
    for one in lies:
        yield from (cut.axis for cut in one.cuts if cut is not None)


def _sharding(assigned: assignment.Assignment, choice: assignment.Choice) -> costs.Sharding:
    model, degrees = assigned.model, assigned.degrees
    axes = set(_axes(choice))
    if choice.way == registry.REPLICATED and not choice.costs:
        return costs.REPLICATED
    sent = {work: [one for one in choice.costs if one.work is work] for work in schedule.Work}
    return costs.Sharding(
        name=choice.way,
        compute=math.prod(1 / degrees.get(axis, 1) for axis in axes),
        kept=max(
            (_share(lies, model.tensors[one].shape) for one, lies in choice.split.gives.items()),
            default=1.0,
        ),
        variables={
            key: _share(assigned.variables[key].layout, model.variables[key].shape)
            for key in choice.node.variables
            if not assigned.variables[key].layout.is_whole
        },
        forward_bytes=_bytes(sent[schedule.Work.FORWARD], degrees),
        forward_messages=_messages(sent[schedule.Work.FORWARD], degrees),
        backward_bytes=_bytes(sent[schedule.Work.BACKWARD], degrees),
        backward_messages=_messages(sent[schedule.Work.BACKWARD], degrees),
    )


def _share(lies: layout.Layout, dims: Sequence[int | None]) -> float:
    """The share of the rank that has most."""
    parts = zip(lies.largest(dims), dims, strict=True)
    return math.prod((part or 1) / (size or 1) for part, size in parts)


def _bytes(sent: Sequence[traffic.Traffic], degrees: Mapping[shape.Axis, int]) -> float:
    """Bytes that a rank sends for an example."""
    return sum(one.sent(1, degrees.get(one.axis, 1)) for one in sent)


def _messages(sent: Sequence[traffic.Traffic], degrees: Mapping[shape.Axis, int]) -> int:
    """How often a rank sends: around the ring once, for a sum twice, to both neighbours at most."""
    count = 0
    for one in sent:
        around = degrees.get(one.axis, 1) - 1
        count += {
            traffic.Kind.SUM: 2 * around,
            traffic.Kind.GATHER: around,
            traffic.Kind.EXCHANGE: around,
            traffic.Kind.HALO: min(2, around),
        }[one.kind]
    return count
