"""A rank's part of the variables of training: the interface between an engine and its checkpoints.

An engine has a mapping from keys (`keys`) to shards for each of its ranks. An undivided variable is
one shard, and a process without a mesh has one rank. Variables are read and written by blocks of
rows, so that large ones are never in memory twice.
"""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

Part = tuple[slice, ...]
"""A slice without a step for each axis of a variable; missing axes are whole."""

BLOCK_BYTES = 4 << 20
"""Maximum bytes of a block; it has at least one row."""

Placed = tuple[tuple[slice, ...], Any]
"""An array and its position in a variable."""


@dataclasses.dataclass(frozen=True, slots=True)
class Box:
    """A part of a variable, or of anything with axes: its start and its sizes."""

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
        """The same as slices of another part that contains it."""
        return tuple(
            slice(low - outer, low - outer + count)
            for low, outer, count in zip(self.start, other.start, self.shape, strict=True)
        )

    def overlap(self, other: "Box") -> "Box | None":
        """The intersection of two parts of one variable. None: it is empty."""
        lows = tuple(map(max, self.start, other.start))
        ends = (
            min(start + length, two + width)
            for start, length, two, width in zip(
                self.start, self.shape, other.start, other.shape, strict=True
            )
        )
        shape = tuple(end - low for low, end in zip(lows, ends, strict=True))
        return Box(lows, shape) if all(count > 0 for count in shape) else None

    def blocks(self, rows: int) -> Iterator["Box"]:
        """Divide it into blocks of `rows` rows; the last one may have fewer."""
        if not self.shape:
            yield self
            return
        for low in range(0, self.shape[0], rows):
            count = min(rows, self.shape[0] - low)
            yield Box((self.start[0] + low, *self.start[1:]), (count, *self.shape[1:]))


def box(part: Part, shape: Sequence[int]) -> Box:
    """The box of a part in a variable of this shape; a ValueError for slices that do not fit."""
    axes = [*part, *[slice(None)] * (len(shape) - len(part))]
    bounds = [axis.indices(length) for axis, length in zip(axes, shape, strict=True)]
    if any(step != 1 or high < low for low, high, step in bounds):
        raise ValueError(f"{part} is no part of a variable of shape {tuple(shape)}")
    return Box(tuple(low for low, _, _ in bounds), tuple(high - low for low, high, _ in bounds))


@dataclasses.dataclass(frozen=True, slots=True)
class Copy:
    """The value that a variable had at one moment, in this process's memory."""

    value: Any
    """An array in row-major order."""

    @property
    def shape(self) -> tuple[int, ...]:
        """That of the array."""
        return tuple(self.value.shape)

    @property
    def dtype(self) -> Any:
        """That of the array."""
        return self.value.dtype


@dataclasses.dataclass(frozen=True, slots=True)
class FullVariable:
    """A variable of the unsplit model or its optimizer; ranks hold parts of it."""

    shape: tuple[int, ...]
    label: str
    """Its path in the user's model, for people."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class VariableShard:
    """A rank's part of one variable of the unsplit model or its optimizer."""

    variable: Any
    """The keras.Variable on the rank's device that holds the part, and nothing else; or a `Copy`,
    which can only be saved."""
    whole: FullVariable
    part: Part = ()
    """Its part of the whole variable; empty: all of it."""
    writes: bool = True
    """Whether a checkpoint takes the part from here: from one of the ranks that hold it."""

    @property
    def box(self) -> Box:
        """Where the part lies in the whole variable."""
        return box(self.part, self.whole.shape)


Shares = Sequence[Mapping[str, VariableShard]]
"""The shards of a process's rank, by key."""


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """The variables that a process writes to a checkpoint, and restores from one."""

    shares: Shares
    wholes: Mapping[str, FullVariable]
    """The variables of all processes, by key."""

    def each(self) -> Iterator[tuple[str, VariableShard]]:
        """Iterate over the shards of all ranks of this process."""
        for share in self.shares:
            yield from share.items()


def undivided(variables: Mapping[str, Any]) -> State:
    """The state of a process that holds all of each variable, as one rank."""
    wholes = {
        key: FullVariable(tuple(variable.shape), variable.path)
        for key, variable in variables.items()
    }
    share = {
        key: VariableShard(variable=variable, whole=wholes[key])
        for key, variable in variables.items()
    }
    return State([share], wholes)


def copied(state: State, previous: State | None = None) -> State:
    """Copy what a process writes to a checkpoint, so that training may change the variables.

    The copy takes the place of a previous one, whose memory is not given back in between.
    """
    shares: list[dict[str, VariableShard]] = []
    for rank, share in enumerate(state.shares):
        copies = {}
        for key, entry in share.items():
            if not entry.writes:
                continue
            if previous is None:
                copy = Copy(_array(entry.variable))
            else:
                copy = previous.shares[rank][key].variable
                read_into(entry.variable, copy.value)
            copies[key] = dataclasses.replace(entry, variable=copy)
        shares.append(copies)
    return dataclasses.replace(state, shares=shares)


def uncovered(boxes: Iterable[Box], shape: Sequence[int]) -> int:
    """Number of elements of a variable in no part; a ValueError if two parts overlap."""
    placed: list[Box] = []
    for box in boxes:
        if any(box.overlap(other) for other in placed):
            raise ValueError(f"two parts hold the same elements of {box.slices}")
        placed.append(box)
    return math.prod(shape) - sum(box.size for box in placed)


def rows_of(shape: Sequence[int], item_bytes: int) -> int:
    """Number of rows of a block; an array without axes is one row."""
    row = item_bytes * math.prod(shape[1:])
    return max(1, BLOCK_BYTES // max(1, row))


def blocks(variable: Any) -> Iterator[Any]:
    """Yield the value of a variable as arrays, one block of rows after the other."""
    shape = tuple(variable.shape)
    value = variable.value
    if not isinstance(value, np.ndarray) and (not shape or not _is_divisible(value)):
        value = _array(variable)
    if not shape:
        yield value
        return
    rows = rows_of(shape, tf.as_dtype(value.dtype).size)
    for low in range(0, shape[0], rows):
        block = value[low : low + rows]
        yield block if isinstance(block, np.ndarray) else block.numpy()


def read_into(variable: Any, array: Any) -> None:
    """Copy the value of a variable into an array of its shape and type."""
    np.copyto(array, _shared_array(variable))


def assign(variable: Any, parts: Iterator[Placed]) -> None:
    """Assign arrays to their positions in a variable; together they fill it."""
    value, shape = variable.value, tuple(variable.shape)
    kind = value.dtype.as_numpy_dtype
    if not _is_divisible(value):
        whole = np.empty(shape, kind)
        for box, block in parts:
            whole[box] = block
        variable.assign(whole)
        return
    for box, block in parts:
        if block.shape == shape:
            variable.assign(block)
        else:
            value[box].assign(block.astype(kind, copy=False))


def _array(variable: Any) -> Any:
    """A copy of the value as an array in the order of its rows."""
    # np.ascontiguousarray would give a scalar an axis.
    return np.array(_shared_array(variable), order="C")


def _shared_array(variable: Any) -> Any:
    """The value now as an array, which may have TensorFlow's memory."""
    return tf.convert_to_tensor(variable.value).__array__()  # numpy() would copy it


def _is_divisible(value: Any) -> bool:
    """Whether parts of a value can be read and written alone; a strategy's variables cannot."""
    is_strategys = isinstance(value, tf.distribute.DistributedValues)
    return not is_strategys and hasattr(value[:0] if value.shape.rank else value, "assign")
