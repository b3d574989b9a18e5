"""The layout of a tensor or a variable over the ranks that split a layer. Pure.

Each dimension is whole on every rank or cut over one axis of the mesh. Layouts ignore the data
axis: each of its ranks has its own examples, in dimension 0 of a tensor.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import Self

from tfparallel_trainer.comms import shape

Part = tuple[slice, ...]
"""The rows of each dimension that a rank has."""

AXES = (shape.Axis.SPATIAL, shape.Axis.TENSOR)
"""The axes that a layer can be split over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cut:
    """The division of one dimension. The ranks' rows follow each other in the order of the axis."""

    axis: shape.Axis
    sizes: tuple[int, ...]
    """Number of rows of each rank along the axis, all at least 1."""

    def __post_init__(self) -> None:
        if self.axis not in AXES:
            raise ValueError(f"no layer is split over the axis {self.axis}")
        if not self.sizes or min(self.sizes) < 1:
            raise ValueError(f"each rank needs a row: the sizes are {self.sizes}")

    @property
    def size(self) -> int:
        """Number of rows of all ranks."""
        return sum(self.sizes)

    def rows(self, index: int) -> slice:
        """The rows of a rank, by its index along the axis."""
        begin = sum(self.sizes[:index])
        return slice(begin, begin + self.sizes[index])

    def times(self, factor: int) -> Self:
        """The cut of a dimension with `factor` rows for each row of this one."""
        return type(self)(self.axis, tuple(size * factor for size in self.sizes))

    def coarsen(self, factor: int) -> Self:
        """The cut of a dimension with one row for each `factor` rows; borders must fit."""
        if any(size % factor for size in self.sizes):
            raise ValueError(f"parts of {self.sizes} rows are no multiples of {factor}")
        return type(self)(self.axis, tuple(size // factor for size in self.sizes))


def even(axis: shape.Axis, size: int, ranks: int, unit: int = 1) -> Cut:
    """Divide rows as evenly as possible, in units that stay together. No rank is empty."""
    units = size // unit
    if units < ranks:
        raise ValueError(f"{units} cannot be divided over {ranks} ranks")
    more, least = units % ranks, units // ranks
    return Cut(axis, tuple((least + (index < more)) * unit for index in range(ranks)))


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """One entry for each dimension. None: it is not divided."""

    cuts: tuple[Cut | None, ...]

    def __post_init__(self) -> None:
        if len(self.axes) < sum(cut is not None for cut in self.cuts):
            raise ValueError(f"one axis cuts two dimensions: {self}")

    def __str__(self) -> str:
        shown = ("whole" if cut is None else f"{cut.axis} {cut.sizes}" for cut in self.cuts)
        return f"[{', '.join(shown)}]"

    @property
    def is_whole(self) -> bool:
        """Whether every rank has the full tensor."""
        return all(cut is None for cut in self.cuts)

    @property
    def axes(self) -> frozenset[shape.Axis]:
        """The axes that cut a dimension."""
        return frozenset(cut.axis for cut in self.cuts if cut is not None)

    def find_cut(self, axis: shape.Axis) -> tuple[int, Cut] | None:
        """Return the dimension that an axis cuts, and the cut."""
        for dimension, cut in enumerate(self.cuts):
            if cut is not None and cut.axis is axis:
                return dimension, cut
        return None

    def dimension(self, axis: shape.Axis) -> int | None:
        """The dimension that an axis cuts."""
        position = self.find_cut(axis)
        return None if position is None else position[0]

    def put(self, dimension: int, cut: Cut | None) -> Self:
        """The same layout with another cut, or None, of one dimension; -1 is the last one."""
        cuts = list(self.cuts)
        cuts[dimension] = cut
        return type(self)(tuple(cuts))

    def without(self, axis: shape.Axis) -> Self:
        """The layout in which no dimension is cut over an axis."""
        kept = (None if cut is not None and cut.axis is axis else cut for cut in self.cuts)
        return type(self)(tuple(kept))

    def part(self, coordinates: Mapping[shape.Axis, int]) -> Part:
        """The rows of the rank at some coordinates of the mesh; missing axes are 0."""
        return tuple(
            slice(None) if cut is None else cut.rows(coordinates.get(cut.axis, 0))
            for cut in self.cuts
        )

    def local(
        self, dims: Sequence[int | None], coordinates: Mapping[shape.Axis, int]
    ) -> tuple[int | None, ...]:
        """The shape of the part of a rank."""
        return tuple(
            size if cut is None else cut.sizes[coordinates.get(cut.axis, 0)]
            for size, cut in zip(dims, self.cuts, strict=True)
        )

    def largest(self, dims: Sequence[int | None]) -> tuple[int | None, ...]:
        """The shape of the largest part, in each dimension."""
        return tuple(
            size if cut is None else max(cut.sizes)
            for size, cut in zip(dims, self.cuts, strict=True)
        )


@functools.cache
def whole(rank: int) -> Layout:
    """The layout of a replicated tensor with `rank` dimensions."""
    return Layout((None,) * rank)


def cut(rank: int, dimension: int, by: Cut) -> Layout:
    """The layout of a tensor that is cut in one dimension; -1 is the last one."""
    return whole(rank).put(dimension, by)


@dataclasses.dataclass(frozen=True, slots=True)
class Change:
    """A step from one layout to another: an axis cuts another dimension, or none."""

    axis: shape.Axis
    before: tuple[int, Cut] | None
    after: tuple[int, Cut] | None

    def apply(self, layout: Layout) -> Layout:
        """The layout after this step."""
        layout = layout.without(self.axis)
        return layout if self.after is None else layout.put(*self.after)


def changes(before: Layout, after: Layout) -> Iterator[Change]:
    """The steps between two layouts, in an order in which no dimension is ever cut twice."""
    changes_by_axis = {axis: (before.find_cut(axis), after.find_cut(axis)) for axis in AXES}
    now = before
    for axis, (old, new) in changes_by_axis.items():
        clashes = new is not None and any(
            other is not axis and now.dimension(other) == new[0] for other in AXES
        )
        if old is not None and (new is None or clashes or old[0] == new[0]) and old != new:
            yield Change(axis, old, None)
            now = now.without(axis)
    for axis, (_, new) in changes_by_axis.items():
        here = now.find_cut(axis)
        if here is not None and here != new:
            change = Change(axis, here, new)
            yield change
            now = change.apply(now)
    for axis, (_, new) in changes_by_axis.items():
        if new is not None and now.find_cut(axis) is None:
            yield Change(axis, None, new)
