"""Where to cut so that a step of the pipeline takes least: exact, by dynamic programming. Pure.

A step takes the time in which one microbatch goes through all stages. Then the dearest stage does
all the others and its end of the step:

    sum over stages of row + maximum over stages of load

A row is the seconds of a stage for one microbatch, a load those for the others and the update. This
is the model of Zheng et al., Alpa, 2022, section 5.2. Stages: differences of downsets.
"""

import functools
import itertools
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph

Matrix = npt.NDArray[np.float64]
"""Of each stage that begins behind one downset and ends with another one, by their places. Infinite
where there is no such stage or it does not fit its device."""

Vector = npt.NDArray[np.float64]
"""Of each node, block or tensor, by their places."""

_NOTHING = 1e-12
"""Relative difference below which two times are equal."""


def best(rows: Sequence[Matrix], loads: Sequence[Matrix]) -> tuple[int, ...] | None:
    """Find the cut whose step takes least.

    The sum for the least possible maximum is an upper bound; the least sum of all is a lower one.
    Between the two maxima the range is halved as long as it can hold anything better.

    Returns:
        The places of the downsets, the empty one and the whole included; None when nothing fits.
    """
    greatest = least(loads, np.maximum)
    if greatest is None:
        return None
    every = np.unique(np.concatenate([load[np.isfinite(load)] for load in loads]))
    limits = every[every >= greatest[1]]
    shortest: tuple[float, tuple[int, ...] | None] = np.inf, None

    @functools.cache
    def least_sum(index: int) -> float:
        """Of the cuts whose loads do not exceed a limit; remembers the one whose step is short."""
        nonlocal shortest
        pairs = zip(rows, loads, strict=True)
        cut = least([np.where(load <= limits[index], row, np.inf) for row, load in pairs], np.add)
        if cut is None:
            return np.inf
        seconds = step(cut[0], rows, loads)
        if seconds < shortest[0] * (1 - _NOTHING):
            shortest = seconds, cut[0]
        return cut[1]

    ranges = [(0, len(limits) - 1)]
    while ranges:
        low, high = ranges.pop()
        bottom, top = least_sum(high), least_sum(low)
        if high - low < 2 or top - bottom <= _NOTHING * top:
            continue
        # No limit between has a smaller sum than that at the high end.
        if float(limits[low + 1]) + bottom >= shortest[0] * (1 - _NOTHING):
            continue
        middle = (low + high) // 2
        ranges += [(middle, high), (low, middle)]
    return shortest[1]


def evenest(
    rows: Sequence[Matrix], loads: Sequence[Matrix], sizes: Matrix, most: float
) -> tuple[int, ...] | None:
    """Find the cut whose largest stage is smallest among those that do not take too long.

    The least seconds that a limit of sizes leaves only fall while the limit grows. So halving finds
    the least limit that leaves few enough. Of equal cuts the fastest is taken.

    Args:
        sizes: sizes to balance, the same for any stage between two downsets.
        most: seconds of a step that are not too long.

    Returns:
        As `best`; None when every cut takes too long.
    """
    smallest = least([sizes] * len(rows), np.maximum)
    if smallest is None:
        return None
    limits = np.unique(sizes[np.isfinite(sizes) & (sizes >= smallest[1])])
    evenest_path = None
    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2 if low else 0  # the evenest of all is often fast enough
        allowed = sizes <= limits[middle]
        path = best(
            *([np.where(allowed, row, np.inf) for row in matrices] for matrices in (rows, loads))
        )
        if path is None or step(path, rows, loads) > most:
            low = middle + 1
        else:
            evenest_path, high = path, middle
    return evenest_path


def least(values: Sequence[Matrix], of: np.ufunc) -> tuple[tuple[int, ...], float] | None:
    """Find the cut whose sum (np.add) or maximum of values is least, and that; None: no cut."""
    reached = values[0][0]
    lasts: list[npt.NDArray[np.intp]] = []
    for value in values[1:]:
        through = of(reached[:, None], value)
        lasts.append(through.argmin(axis=0))
        reached = through.min(axis=0)
    if not np.isfinite(reached[-1]):
        return None
    path = [len(reached) - 1]
    for last in reversed(lasts):
        path.append(int(last[path[-1]]))
    return (0, *reversed(path)), float(reached[-1])


def step(path: Sequence[int], rows: Sequence[Matrix], loads: Sequence[Matrix]) -> float:
    """Seconds of a step for a cut."""
    pairs = list(itertools.pairwise(path))
    total = sum(float(row[pair]) for row, pair in zip(rows, pairs, strict=True))
    return total + max(float(load[pair]) for load, pair in zip(loads, pairs, strict=True))


class Crossing:
    """Of one model in blocks, with its stages between two downsets."""

    def __init__(
        self,
        model: graph.Graph,
        makers: Mapping[int, int],
        block_of: Mapping[int, int],
        membership: npt.NDArray[np.float64],
    ) -> None:
        """Take a membership: 1 where a downset (row) has a block (column), else 0."""
        takers: dict[int, set[int]] = {}
        for index, node in enumerate(model.nodes):
            for tensor in node.inputs:
                if tensor in makers:
                    takers.setdefault(tensor, set()).add(block_of[index])
        home = {tensor: block_of[makers[tensor]] for tensor in takers}
        self.tensors = tuple(
            number for number, places in takers.items() if places != {home[number]}
        )
        """Those that may leave a block."""
        total = np.array([len(takers[number]) for number in self.tensors], dtype=int)
        shape = (len(total), len(membership))
        has_maker = np.array([membership[:, home[number]] for number in self.tensors]).reshape(
            shape
        )
        count = np.array(
            [membership[:, sorted(takers[number])].sum(axis=1) for number in self.tensors]
        )
        count = count.reshape(shape)
        self._before, self._within = 1 - has_maker, has_maker * (count < total[:, None])
        # For each number of takers that there may be before a stage: one that takes it has more.
        self._of = np.repeat(np.arange(len(total)), total)
        number = (np.arange(len(self._of)) - np.repeat(np.cumsum(total) - total, total))[:, None]
        self._had = has_maker[self._of] * (count[self._of] == number)
        self._more = (count[self._of] > number).astype(float)

    def received(self, weights: Vector) -> Matrix:
        """Sums of weights over the tensors that a stage takes from others."""
        return np.asarray((self._had * weights[self._of, None]).T @ self._more)

    def sent(self, weights: Vector) -> Matrix:
        """Sums of weights over the tensors that a stage makes and that others take."""
        return np.asarray((self._before * weights[:, None]).T @ self._within)
