"""Which slices, gathers and exchanges bring a tensor from one layout into another. Pure."""

import dataclasses
from collections.abc import Iterator, Sequence

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import layout, traffic
from tfparallel_trainer.engines.split.pipeline import schedule


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """What happens along one axis; None is whole."""

    axis: shape.Axis
    before: tuple[int, layout.Cut] | None
    after: tuple[int, layout.Cut] | None


def traffic_of(
    tensor: Sequence[int | None],
    dtype: str,
    before: layout.Layout,
    after: layout.Layout,
    has_gradient: bool,
) -> tuple[traffic.Traffic, ...]:
    """Say what a change of the layout of a tensor costs, by its whole shape."""
    if before == after:
        return ()
    costs: list[traffic.Traffic] = []
    now = before
    for change in changes(before, after):
        then = _done(now, change)
        steps = [(schedule.Work.FORWARD, change.before, change.after, now)]
        if has_gradient:
            steps.append((schedule.Work.BACKWARD, change.after, change.before, then))
        for work, old, new, lies in steps:
            if old is None:
                continue  # a slice
            brought = list(lies.largest(tensor))
            if new is not None:
                brought[new[0]] = max(new[1].sizes) * len(new[1].sizes)
            costs.append(
                traffic.Traffic(
                    kind=traffic.Kind.GATHER if new is None else traffic.Kind.EXCHANGE,
                    axis=change.axis,
                    work=work,
                    shape=tuple(brought),
                    dtype=traffic.carried(dtype),
                )
            )
        now = then
    return tuple(costs)


def changes(before: layout.Layout, after: layout.Layout) -> Iterator[Change]:
    """One change after the other, in an order in which no dimension is ever cut twice."""
    waiting = {axis: (before.over(axis), after.over(axis)) for axis in layout.AXES}
    now = before
    for axis, (old, new) in waiting.items():
        taken = new is not None and any(
            other is not axis and now.dimension(other) == new[0] for other in layout.AXES
        )
        if old is not None and (new is None or taken or old[0] == new[0]) and old != new:
            yield Change(axis, old, None)
            now = now.without(axis)
    for axis, (_, new) in waiting.items():
        here = now.over(axis)
        if here is None and new is not None:
            continue
        if here != new:
            yield Change(axis, here, new)
            now = _done(now, Change(axis, here, new))
    for axis, (_, new) in waiting.items():
        if new is not None and now.over(axis) is None:
            yield Change(axis, None, new)


def _done(lies: layout.Layout, change: Change) -> layout.Layout:
    lies = lies.without(change.axis)
    return lies if change.after is None else lies.put(*change.after)
