"""The mesh as a value: axes, degrees, and the coordinates of each rank. Pure, without TensorFlow.

A rank is one device of one process. Ranks are numbered row by row with the last axis of `Axis`
varying fastest, so ranks that exchange most (tensor, spatial) are neighbours.
"""

import dataclasses
import enum
import math

from tfparallel_trainer import errors


class Axis(enum.StrEnum):
    """An axis of the mesh, named after what its ranks divide; slowest first."""

    DATA = "data"
    """The examples of a batch."""
    STAGE = "stage"
    """The layers, as a pipeline."""
    SPATIAL = "spatial"
    """The height of images."""
    TENSOR = "tensor"
    """The channels and features of a layer."""


_AXES = tuple(Axis)

MAX_PAIRED = 46
"""Groups of more ranks have no keys for their pairs."""

_BLOCK_BITS = 18
"""Bits of a mesh's block of keys."""
_BLOCKS = (1 << 30 - _BLOCK_BITS) - 1
"""Number of meshes with keys of their own; the first block has the keys of other groups."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """Ranks that differ along one axis only, in the order of that axis."""

    axis: Axis
    ranks: tuple[int, ...]
    key: int
    """TensorFlow's group key: a number that no other set of ranks has, in no mesh of the process.
    The keys of its pairs follow it."""


def pair_key(key: int, size: int, rank: int, other: int) -> int:
    """The TensorFlow group key of two members, by their positions in a group of this key."""
    low, high = sorted((rank, other))
    if size > MAX_PAIRED or not 0 <= low < high < size:
        raise ValueError(f"{rank} and {other} are no pair in a group of {size} ranks")
    return key + 1 + math.comb(high, 2) + low


@dataclasses.dataclass(frozen=True, slots=True)
class MeshShape:
    """The number of ranks along each axis; all degrees are at least 1."""

    data: int = 1
    stage: int = 1
    spatial: int = 1
    tensor: int = 1
    generation: int = 0
    """Number of this mesh among those of the processes, from 0. Each mesh has its own block of
    keys, because TensorFlow remembers what belongs to a key until the process exits."""

    def __post_init__(self) -> None:
        for axis in _AXES:
            if self.degree(axis) < 1:
                raise errors.BadConfigurationError(
                    f"mesh.{axis} is {self.degree(axis)}: give a number from 1."
                )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return math.prod(self.degrees)

    @property
    def only_data(self) -> bool:
        """Whether only batches are divided, so that each rank has the whole model."""
        return self.data == self.size

    @property
    def degrees(self) -> tuple[int, ...]:
        """Number of ranks along each axis, in the order of `Axis`."""
        return self.data, self.stage, self.spatial, self.tensor

    def degree(self, axis: Axis) -> int:
        """Number of ranks along an axis."""
        return int(getattr(self, axis))

    def coordinates(self, rank: int) -> dict[Axis, int]:
        """The position of a rank along each axis; a ValueError if the mesh has no such rank."""
        self._check_rank(rank)
        position: dict[Axis, int] = {}
        for axis, degree in zip(reversed(_AXES), reversed(self.degrees), strict=True):
            rank, position[axis] = divmod(rank, degree)
        return position

    def group(self, rank: int, axis: Axis) -> Group:
        """The ranks that differ from this one along one axis only, itself among them."""
        self._check_rank(rank)
        position, degree = _AXES.index(axis), self.degree(axis)
        stride = math.prod(self.degrees[position + 1 :])
        slower, faster = rank // (stride * degree), rank % stride
        first = slower * stride * degree + faster
        earlier = sum(self._keys(other) for other in _AXES[:position])
        number = (slower * stride + faster) * _width(degree)
        return Group(
            axis, (*range(first, first + stride * degree, stride),), self._key(earlier + number)
        )

    def ranks_of_stage(self, stage: int) -> tuple[int, ...]:
        """The ranks that run a stage."""
        return tuple(
            rank for rank in range(self.size) if self.coordinates(rank)[Axis.STAGE] == stage
        )

    def other_key(self, number: int) -> int:
        """The group key of another set of ranks than those along an axis; `number` is from 0."""
        return self._key(sum(self._keys(axis) for axis in _AXES) + number)

    def _key(self, number: int) -> int:
        """The key with a number in this mesh's block: below 2**30."""
        if number >= 1 << _BLOCK_BITS:
            axes = " x ".join(f"{axis} {self.degree(axis)}" for axis in _AXES)
            raise errors.BadConfigurationError(
                f"mesh is {axes}, which makes more than {1 << _BLOCK_BITS} groups and pairs of "
                "ranks: give fewer devices."
            )
        return (1 + self.generation % _BLOCKS << _BLOCK_BITS) + number

    def _keys(self, axis: Axis) -> int:
        """Number of keys of the groups along an axis, with their pairs."""
        return self.size // self.degree(axis) * _width(self.degree(axis))

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.size:
            raise ValueError(f"rank {rank} is not in a mesh of {self.size} ranks")


def _width(size: int) -> int:
    """Number of keys of a group, with its pairs."""
    return 1 + math.comb(size, 2) if size <= MAX_PAIRED else 1
