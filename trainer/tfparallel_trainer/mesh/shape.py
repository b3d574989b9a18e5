"""The mesh as a value: axes, degrees, and where each rank stands. Pure, without TensorFlow.

A rank is one device of one process. Ranks are numbered row by row with the last axis of `Axis`
varying fastest, so ranks that exchange most (tensor, spatial) are neighbours.
"""

import dataclasses
import enum
import math
from collections.abc import Mapping

from tfparallel_trainer import errors


class Axis(enum.StrEnum):
    """What the ranks along one direction of the mesh divide among them; slowest first."""

    DATA = "data"
    """The examples of a batch."""
    STAGE = "stage"
    """The layers, as a pipeline."""
    SPATIAL = "spatial"
    """The height of images."""
    TENSOR = "tensor"
    """The channels and features of a layer."""


_AXES = tuple(Axis)
_INDEX_BITS = 14
_SIZE_BITS = 12

MAX_PAIRED = 46
"""Groups of more ranks have no keys for their pairs."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Ranks that differ along one axis only, in the order of that axis."""

    axis: Axis
    index: int
    """Which of the groups along this axis."""
    ranks: tuple[int, ...]

    @property
    def key(self) -> int:
        """A number that no other group of the mesh has: TensorFlow's group key, below 2**30.

        TensorFlow remembers the size that belongs to a key, so the size is part of it.
        """
        axis = 1 + _AXES.index(self.axis)
        return (axis << _SIZE_BITS | len(self.ranks)) << _INDEX_BITS | self.index


def pair_key(key: int, size: int, one: int, other: int) -> int:
    """Give the TensorFlow group key of two members of a group, below 2**31.

    No other pair and no group has it: pairs are numbered over all sizes of groups, and stand where
    the size stands in the key of a group; what stands for their axis follows those of groups, and
    the number behind these, which other sets of ranks have.

    Args:
        key: of the group.
        size: number of its members, at most MAX_PAIRED.
        one: position of a member.
        other: position of another member; the order does not matter.

    Raises:
        ValueError: the group has too many members, or not these two.
    """
    low, high = sorted((one, other))
    if size > MAX_PAIRED or not 0 <= low < high < size:
        raise ValueError(f"{one} and {other} are no pair in a group of {size} ranks")
    number = math.comb(size, 3) + math.comb(high, 2) + low
    more, place = divmod(number, 1 << _SIZE_BITS)
    axis, index = key >> _SIZE_BITS + _INDEX_BITS, key & (1 << _INDEX_BITS) - 1
    kind = axis + (2 + len(_AXES)) * (1 + more)
    return (kind << _SIZE_BITS | place) << _INDEX_BITS | index


@dataclasses.dataclass(frozen=True, slots=True)
class Mesh:
    """How many ranks each axis has; all degrees are at least 1."""

    data: int = 1
    stage: int = 1
    spatial: int = 1
    tensor: int = 1
    generation: int = 0
    """Which mesh of these processes this is, from 0: a later one has keys of its own (thousands
    do), because TensorFlow remembers what belongs to a key for the life of a process."""

    def __post_init__(self) -> None:
        for axis in _AXES:
            if self.degree(axis) < 1:
                raise errors.BadConfigurationError(
                    f"mesh.{axis} is {self.degree(axis)}: give a number from 1."
                )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.degree(axis) for axis in _AXES)

    def degree(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        return int(getattr(self, axis.value))

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """Where a rank stands along each axis.

        Raises:
            ValueError: the mesh has no such rank.
        """
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a mesh of {self.size} ranks")
        place: dict[Axis, int] = {}
        for axis in reversed(_AXES):
            rank, place[axis] = divmod(rank, self.degree(axis))
        return place

    def rank(self, place: Mapping[Axis, int]) -> int:
        """The rank that stands at a place; axes that are not given are 0.

        Raises:
            ValueError: the place lies outside the mesh.
        """
        rank = 0
        for axis in _AXES:
            position = place.get(axis, 0)
            if not 0 <= position < self.degree(axis):
                raise ValueError(f"{axis} {position} is not within {self.degree(axis)}")
            rank = rank * self.degree(axis) + position
        return rank

    def group(self, rank: int, axis: Axis) -> Group:
        """The ranks that differ from this one along one axis only, itself among them."""
        place = self.coordinates(rank)
        ranks = tuple(self.rank({**place, axis: step}) for step in range(self.degree(axis)))
        return Group(axis, self._group_index(place, axis), ranks)

    def _group_index(self, place: Mapping[Axis, int], axis: Axis) -> int:
        index = self.generation % ((1 << _INDEX_BITS) * self.degree(axis) // self.size)
        for other in _AXES:
            if other is not axis:
                index = index * self.degree(other) + place[other]
        return index
