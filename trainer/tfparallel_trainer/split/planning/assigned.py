"""The ways that the rules of layers give, as the planner counts them. Pure."""

import math
from collections.abc import Iterator, Mapping, Sequence

from tfparallel_trainer.mesh import shape
from tfparallel_trainer.split import assignment, graph, layout, schedule, traffic
from tfparallel_trainer.split.planning import choose, ways
from tfparallel_trainer.split.rules import registry


def ways_of(model: graph.Graph) -> choose.WaysOf:
    """Give the ways of a model's nodes on any mesh; none where a degree would divide nothing."""

    def on(mesh: shape.Mesh) -> Sequence[ways.Way] | None:
        degrees = {axis: mesh.degree(axis) for axis in layout.AXES}
        if all(degree == 1 for degree in degrees.values()):
            return [ways.REPLICATED] * len(model.nodes)
        assigned = assignment.assign(model, degrees)
        used = {axis for choice in assigned.choices for axis in _axes(choice)}
        if any(degree > 1 and axis not in used for axis, degree in degrees.items()):
            return None
        return [_way(assigned, choice) for choice in assigned.choices]

    return on


def _axes(choice: assignment.Choice) -> Iterator[shape.Axis]:
    """The axes that divide the outputs or the variables of a node."""
    lies = [
        *choice.split.gives.values(),
        *(shard.layout for shard in choice.split.variables.values()),
    ]
    for one in lies:
        yield from (cut.axis for cut in one.cuts if cut is not None)


def _way(assigned: assignment.Assignment, choice: assignment.Choice) -> ways.Way:
    model, degrees = assigned.model, assigned.degrees
    axes = set(_axes(choice))
    if choice.way == registry.REPLICATED and not choice.costs:
        return ways.REPLICATED
    sent = {work: [one for one in choice.costs if one.work is work] for work in schedule.Work}
    return ways.Way(
        name=choice.way,
        compute=math.prod(1 / degrees.get(axis, 1) for axis in axes),
        kept=max(
            (_share(lies, model.tensors[one].shape) for one, lies in choice.split.gives.items()),
            default=1.0,
        ),
        variables={
            key: _share(assigned.variables[key].layout, model.variables[key].shape)
            for key in choice.node.variables
        },
        forward_bytes=_bytes(sent[schedule.Work.FORWARD], degrees),
        forward_messages=_messages(sent[schedule.Work.FORWARD], degrees),
        backward_bytes=_bytes(sent[schedule.Work.BACKWARD], degrees),
        backward_messages=_messages(sent[schedule.Work.BACKWARD], degrees),
    )


def _share(lies: layout.Layout, whole: Sequence[int | None]) -> float:
    """The share of the rank that has most."""
    parts = zip(lies.largest(whole), whole, strict=True)
    return math.prod((part or 1) / (size or 1) for part, size in parts)


def _bytes(sent: Sequence[traffic.Traffic], degrees: Mapping[shape.Axis, int]) -> float:
    """Bytes that a rank sends for an example."""
    return sum(one.sent(1, degrees.get(one.axis, 1)) for one in sent)


def _messages(sent: Sequence[traffic.Traffic], degrees: Mapping[shape.Axis, int]) -> int:
    """How often a rank sends: around the ring once, for a sum twice."""
    rounds = {traffic.Kind.SUM: 2, traffic.Kind.GATHER: 1, traffic.Kind.EXCHANGE: 1}
    return sum(rounds[one.kind] * (degrees.get(one.axis, 1) - 1) for one in sent)
