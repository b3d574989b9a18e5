"""The communication cost of splitting a layer, as data. Pure."""

import dataclasses
import enum
import math
from collections.abc import Sequence

from tfparallel_trainer.comms.shape import Axis
from tfparallel_trainer.engines.split.layers import layout
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import schedule


class CollectiveKind(enum.StrEnum):
    """A collective operation."""

    SUM = "sum"
    GATHER = "gather"
    EXCHANGE = "exchange"
    """Each rank gives every other one a part (all-to-all)."""
    HALO = "halo"
    """Ranks send rows to their neighbours. The cost is that of the rank that sends most."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """One operation of a group of ranks, for each microbatch."""

    kind: CollectiveKind
    axis: Axis
    work: schedule.Pass
    shape: tuple[int | None, ...]
    """Shape of each rank's input tensor. None: a size that depends on the batch or the data; counts
    as 1."""
    dtype: str
    parts: int = 1
    """Number of parts of the batch; the cost is that of the largest."""
    rows: int = 1
    """Rows of each example in the dimension that grows with the batch; 0: no dimension does."""

    def brought(self, batch: int) -> int:
        """Bytes of a rank's input tensor."""
        grows = self.rows and None in self.shape
        rows = -(-batch * self.rows // self.parts) if grows else 1
        return rows * math.prod(size or 1 for size in self.shape) * graph.itemsize(self.dtype)

    def sent(self, batch: int, ranks: int) -> float:
        """Bytes that a rank sends if the group is a ring."""
        share = {
            CollectiveKind.SUM: 2 * (ranks - 1) / ranks,
            CollectiveKind.GATHER: ranks - 1,
            CollectiveKind.EXCHANGE: (ranks - 1) / ranks,
            CollectiveKind.HALO: 1,
        }[self.kind]
        return share * self.brought(batch)

    def messages(self, ranks: int) -> int:
        """Number of messages of a rank: around the ring, twice for a sum; or to two neighbours."""
        around = ranks - 1
        times = {CollectiveKind.SUM: 2 * around, CollectiveKind.HALO: min(2, around)}
        return times.get(self.kind, around)


def carried(dtype: str) -> str:
    """The type in which parts of tensors are sent: not every type can be gathered."""
    if dtype == "bfloat16":
        return "float32"
    return (
        "int32" if dtype == "bool" or graph.itemsize(dtype) < graph.itemsize("float16") else dtype
    )


def to_examples(
    tensor: Sequence[int | None], dtype: str, before: layout.Layout, axis: Axis, has_gradient: bool
) -> tuple[Traffic, ...]:
    """The cost of giving each rank of an axis all of some examples, of a tensor that it cuts."""
    passes = [schedule.Pass.FORWARD, *([schedule.Pass.BACKWARD] if has_gradient else [])]
    return tuple(
        Traffic(
            kind=CollectiveKind.EXCHANGE,
            axis=axis,
            work=work,
            shape=before.largest(tensor),
            dtype=carried(dtype),
        )
        for work in passes
    )


def resharding(
    tensor: Sequence[int | None],
    dtype: str,
    before: layout.Layout,
    after: layout.Layout,
    has_gradient: bool,
) -> tuple[Traffic, ...]:
    """The cost of converting a tensor, of a full shape, from one layout to another."""
    costs: list[Traffic] = []
    now = before
    for change in layout.changes(before, after):
        then = change.apply(now)
        steps = [(schedule.Pass.FORWARD, change.before, change.after, now)]
        if has_gradient:
            steps.append((schedule.Pass.BACKWARD, change.after, change.before, then))
        for work, old, new, tensor_layout in steps:
            if old is None:
                continue  # a slice
            brought = list(tensor_layout.largest(tensor))
            if new is not None:
                brought[new[0]] = max(new[1].sizes) * len(new[1].sizes)
            costs.append(
                Traffic(
                    kind=CollectiveKind.GATHER if new is None else CollectiveKind.EXCHANGE,
                    axis=change.axis,
                    work=work,
                    shape=tuple(brought),
                    dtype=carried(dtype),
                )
            )
        now = then
    return tuple(costs)
