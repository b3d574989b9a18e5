"""What a rank holds of the variables of training: the seam between an engine and its checkpoints.

An engine gives for each of its ranks a mapping from keys (`keys`) to shards. A variable that is not
divided is one shard with all of it, and a process without a mesh has one rank.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

Part = tuple[slice, ...]
"""Which rows of each axis of a variable, without steps; axes that are left out are whole."""


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A part of a variable, or of anything with axes: where it begins and how far it goes."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements; of a scalar 1."""
        return math.prod(self.shape)

    @property
    def slices(self) -> Part:
        """The same as slices of the whole."""
        return tuple(
            slice(low, low + count) for low, count in zip(self.start, self.shape, strict=True)
        )

    def within(self, other: "Box") -> Part:
        """The same as slices of another part that it lies in."""
        return tuple(
            slice(low - outer, low - outer + count)
            for low, outer, count in zip(self.start, other.start, self.shape, strict=True)
        )

    def overlap(self, other: "Box") -> "Box | None":
        """What two parts of one variable have in common; None for nothing."""
        lows = tuple(map(max, self.start, other.start))
        ends = (
            min(one + length, two + width)
            for one, length, two, width in zip(
                self.start, self.shape, other.start, other.shape, strict=True
            )
        )
        shape = tuple(end - low for low, end in zip(lows, ends, strict=True))
        return Box(lows, shape) if all(count > 0 for count in shape) else None


def box(part: Part, shape: Sequence[int]) -> Box:
    """Say where a part of a variable of this shape lies.

    Raises:
        ValueError: the slices have steps, leave the variable, or are more than its axes.
    """
    axes = [*part, *[slice(None)] * (len(shape) - len(part))]
    bounds = [one.indices(length) for one, length in zip(axes, shape, strict=True)]
    if any(step != 1 or high < low for low, high, step in bounds):
        raise ValueError(f"{part} is no part of a variable of shape {tuple(shape)}")
    return Box(tuple(low for low, _, _ in bounds), tuple(high - low for low, high, _ in bounds))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """A rank's part of one variable of the unsplit model or its optimizer."""

    variable: Any
    """The keras.Variable on the rank's device that holds the part, and nothing else."""
    shape: tuple[int, ...]
    """Of the whole variable."""
    part: Part = ()
    """Which part of it; empty for all."""
    writes: bool = True
    """Whether a checkpoint takes the part from here. Of all ranks that hold the same part, one."""
    label: str
    """The whole variable's path in the user's model, for people."""

    @property
    def box(self) -> Box:
        """Where the part lies in the whole variable."""
        return box(self.part, self.shape)


Shares = Sequence[Mapping[str, Shard]]
"""What the ranks of a process hold, by key."""


def whole(variables: Mapping[str, Any]) -> Shares:
    """The shares of a process that holds all of each variable, as one rank."""
    return [
        {
            key: Shard(variable=one, shape=tuple(one.shape), label=one.path)
            for key, one in variables.items()
        }
    ]


def each(shares: Shares) -> Iterator[tuple[str, Shard]]:
    """Go through the shards of all ranks of a process."""
    for share in shares:
        yield from share.items()


def uncovered(boxes: Iterable[Box], shape: Sequence[int]) -> int:
    """How many elements of a variable of this shape lie in none of the parts.

    Raises:
        ValueError: two of the parts overlap, so that an element would have two values.
    """
    placed: list[Box] = []
    for one in boxes:
        if any(one.overlap(other) for other in placed):
            raise ValueError(f"two parts hold the same elements of {one.slices}")
        placed.append(one)
    return math.prod(shape) - sum(one.size for one in placed)
