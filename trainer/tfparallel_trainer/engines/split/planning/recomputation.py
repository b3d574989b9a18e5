"""Where segments end whose activations backward passes compute again. Pure.

A microbatch keeps the tensors that segments take, and all that a segment's nodes keep while that
segment goes backward. So segments should end where few bytes cross, and none should be much larger
than the others.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import costs

_LIMITS = 48
"""How many limits of what a segment keeps are tried."""

_ROUNDING = 1e-9
"""Relative difference below which two sizes are equal."""

_Sizes = npt.NDArray[np.float64]


def segment_ends(model: graph.Graph, model_costs: costs.Costs) -> tuple[int, ...]:
    """Behind how many nodes each segment but the last one ends.

    This is the division with the least sum of what all segments take and of what the largest one
    keeps, of those that are tried. Only the last segment has outputs of the model, because a
    loss needs the logits that Keras hangs on them.
    """
    kept = np.array(kept_by_node(model, model_costs))
    total = float(kept.sum())
    if not total:
        return ()
    crossing = _crossing(model, model_costs)
    limits = np.geomspace(kept[kept > 0].min(), total, _LIMITS) * (1 + _ROUNDING)
    divisions = {(), *(_divide(kept, crossing, float(limit)) for limit in limits)}
    return min(
        sorted(divisions),
        key=lambda ends: float(crossing[list(ends)].sum()) + _largest(kept, ends),
    )


def kept_by_node(model: graph.Graph, model_costs: costs.Costs) -> list[float]:
    """Bytes of an example that each node keeps for its backward, and of its outputs that are kept.

    They are those of a whole node, which no rank shares.
    """
    return [
        node_costs.inner_bytes
        + sum(
            model_costs.tensors[number].bytes
            for number in node.outputs
            if model_costs.tensors[number].kept
        )
        for node, node_costs in zip(model.nodes, model_costs.nodes, strict=True)
    ]


def crossing_tensors(model: graph.Graph, ends: Sequence[int]) -> frozenset[int]:
    """The tensors that a segment makes and a later one takes."""
    bounds = [*ends, len(model.nodes)]
    home: dict[int, int] = {}
    crossing = set()
    segment = 0
    for index, node in enumerate(model.nodes):
        segment += index == bounds[segment]
        crossing |= {number for number in node.inputs if home.get(number, segment) != segment}
        home |= dict.fromkeys(node.outputs, segment)
    return frozenset(crossing)


def _crossing(model: graph.Graph, model_costs: costs.Costs) -> _Sizes:
    """Bytes of an example that cross each place between nodes; infinite where no segment ends."""
    count = len(model.nodes)
    sizes = np.zeros(count + 1)
    makers = {number: index for index, node in enumerate(model.nodes) for number in node.outputs}
    last = dict.fromkeys(makers, 0)
    last |= {
        number: index
        for index, node in enumerate(model.nodes)
        for number in node.inputs
        if number in makers
    }
    for number, taker in last.items():
        sizes[makers[number] + 1 : taker + 1] += model_costs.tensors[number].bytes
    outputs = [makers[number] for number in model.output_tensors() if number in makers]
    sizes[min(outputs, default=count) + 1 :] = np.inf
    sizes[0] = sizes[count] = 0.0
    return sizes


def _divide(kept: _Sizes, crossing: _Sizes, limit: float) -> tuple[int, ...]:
    """The ends with the fewest bytes crossing of which no segment of several nodes keeps more."""
    sums = np.concatenate([[0.0], np.cumsum(kept)])
    least = np.zeros(len(sums))
    before = np.zeros(len(sums), dtype=int)
    for end in range(1, len(sums)):
        first = min(int(np.searchsorted(sums, sums[end] - limit)), end - 1)
        before[end] = first + int(np.argmin(least[first:end]))
        least[end] = least[before[end]] + crossing[end]
    ends = []
    end = int(before[-1])
    while end > 0:
        ends.append(end)
        end = int(before[end])
    return tuple(reversed(ends))


def _largest(kept: _Sizes, ends: Sequence[int]) -> float:
    bounds = itertools.pairwise([0, *ends, len(kept)])
    return max(float(kept[low:high].sum()) for low, high in bounds)
