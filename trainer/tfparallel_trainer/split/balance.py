"""Where to cut a row of nodes so that the dearest stage is as cheap as can be. Pure."""

import itertools
from collections.abc import Sequence

from tfparallel_trainer import errors


def ends(costs: Sequence[float], count: int) -> list[int]:
    """Say behind how many nodes each stage but the last one ends.

    Exact: no other cut has a cheaper dearest stage.

    Args:
        costs: of each node, in order; none is negative.
        count: number of stages.

    Raises:
        BadConfigurationError: there are fewer nodes than stages.
    """
    if count > len(costs):
        raise errors.BadConfigurationError(
            f"mesh.stage is {count}, but the model makes only {len(costs)} calls of layers and "
            f"operations: give at most {len(costs)}."
        )
    sums = [0.0, *itertools.accumulate(costs)]
    dearest = sums
    """Of the first nodes, as many as the place says, in as many stages as are placed so far."""
    lasts: list[list[int]] = []
    for placed in range(2, count + 1):
        last = [_last_end(dearest, sums, placed - 1, end) for end in range(len(sums))]
        lasts.append(last)
        dearest = [max(dearest[cut], sums[end] - sums[cut]) for end, cut in enumerate(last)]
    found: list[int] = []
    end = len(costs)
    for last in reversed(lasts):
        end = last[end]
        found.append(end)
    return found[::-1]


def _last_end(dearest: Sequence[float], sums: Sequence[float], stages: int, end: int) -> int:
    """Where the stages before the last one end best, when the last one ends at `end`.

    The later that is, the dearer they are and the cheaper the last one is, so the best place is
    where the two meet.
    """
    low, high = stages, max(stages, end - 1)
    first, beyond = low, high
    while low < high:
        middle = (low + high) // 2
        if dearest[middle] >= sums[end] - sums[middle]:
            high = middle
        else:
            low = middle + 1
    candidates = (place for place in (low - 1, low) if first <= place <= beyond)
    return min(candidates, key=lambda place: max(dearest[place], sums[end] - sums[place]))
