"""Where a graph can be cut: its nodes joined to blocks, and sets of blocks that come first. Pure.

A cut of a graph is a set of blocks that holds, with each block, all that come before it: a downset.
Stages are the differences between one downset and the next. A chain has as many downsets as blocks;
a graph with branches has more, up to all subsets.
"""

import dataclasses
import heapq
import itertools
import operator
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import costs


@dataclasses.dataclass(frozen=True, slots=True)
class Block:
    """Nodes that stay together."""

    nodes: tuple[int, ...]
    """Positions in the graph, ascending."""
    before: int
    """The blocks that must come first, directly, as bits by their places."""


_FINENESS = (1.0, 0.7, 0.5, 0.35, 0.25, 0.15, 0.1)
"""How many blocks are tried, as shares of the downsets."""


def cuttable(
    model: graph.Graph, weights: Sequence[float], most: int
) -> tuple[tuple[Block, ...], tuple[int, ...]]:
    """Give blocks as fine as they can be while all their downsets are at most so many.

    Where no such blocks are found, they are fine, and some of the downsets are given.
    """
    for share in _FINENESS:
        blocks = condense(model, weights, max(2, int(share * most) - 1))
        every = downsets(blocks, most)
        if every is not None:
            return blocks, every
    blocks = condense(model, weights, most - 1)
    return blocks, some_downsets(blocks, most)


def condense(model: graph.Graph, weights: Sequence[float], most: int) -> tuple[Block, ...]:
    """Join nodes that follow each other in series until there are few blocks.

    Two blocks are in series when the first has no other successor and the second no other
    predecessor. The cheapest pair is joined first. What is not in series stays apart, so there may
    be more blocks than are few enough.

    Returns:
        The blocks in an order in which they can run.
    """
    joined = _Joining(model, weights)
    joined.down_to(most)
    return joined.blocks()


def some_downsets(blocks: Sequence[Block], most: int) -> tuple[int, ...]:
    """At most so many downsets, from the empty one to the whole.

    They are those of three orders in which the blocks can run. These are the order of the model,
    depth first, and one that first finishes what it has begun.
    """
    deepest = _ordered(blocks, lambda one, last: last.index(one) if one in last else len(blocks))
    frugal = _ordered(blocks, lambda one, _: -blocks[one].before.bit_count())
    orders = (range(len(blocks)), deepest, frugal)
    every = itertools.chain.from_iterable(
        itertools.accumulate((1 << place for place in order), operator.or_, initial=0)
        for order in orders
    )
    prefixes = list(dict.fromkeys(every))
    step = -(-len(prefixes) // (most - 1))
    return _sorted({0, (1 << len(blocks)) - 1, *prefixes[::step]})


def _sorted(downsets: set[int]) -> tuple[int, ...]:
    return tuple(sorted(downsets, key=lambda one: (one.bit_count(), one)))


def downsets(blocks: Sequence[Block], most: int) -> tuple[int, ...] | None:
    """All downsets as bits, those with few blocks first; None when there are more than so many."""
    known = {0}
    last = {0}
    while last:
        grown = {
            downset | 1 << place
            for downset in last
            for place, block in enumerate(blocks)
            if not downset >> place & 1 and block.before & downset == block.before
        }
        known |= grown
        if len(known) > most:
            return None
        last = grown
    return _sorted(known)


_Rank = Callable[[int, list[int]], int]
"""How soon a block should run, given the successors of those that ran, latest first."""


def _ordered(blocks: Sequence[Block], rank: _Rank) -> list[int]:
    done = 0
    order: list[int] = []
    newly: list[int] = []
    left = set(range(len(blocks)))
    while left:
        ready = [one for one in left if blocks[one].before & done == blocks[one].before]
        place = min(ready, key=lambda one: (rank(one, newly), one))
        left.remove(place)
        done |= 1 << place
        order.append(place)
        newly = [one for one in left if blocks[one].before >> place & 1] + newly
    return order


class _Joining:
    """Blocks while they are being joined; each is told by its first node."""

    def __init__(self, model: graph.Graph, weights: Sequence[float]) -> None:
        self._nodes = {place: [place] for place in range(len(model.nodes))}
        self._weights = dict(enumerate(weights))
        self._before: dict[int, set[int]] = {place: set() for place in self._nodes}
        self._after: dict[int, set[int]] = {place: set() for place in self._nodes}
        for first, second in edges(model):
            self._before[second].add(first)
            self._after[first].add(second)

    def down_to(self, most: int) -> None:
        """Join blocks in series, the lightest pair first, until so many are left or none can be."""
        pairs = [
            (self._weight(first, second), first, second)
            for first in self._nodes
            for second in self._after[first]
        ]
        heapq.heapify(pairs)
        while len(self._nodes) > most and pairs:
            weight, first, second = heapq.heappop(pairs)
            if not self._in_series(first, second) or weight != self._weight(first, second):
                continue
            self._join(first, second)
            for other in self._after[first]:
                heapq.heappush(pairs, (self._weight(first, other), first, other))
            for other in self._before[first]:
                heapq.heappush(pairs, (self._weight(other, first), other, first))

    def blocks(self) -> tuple[Block, ...]:
        """What there is now, in an order in which it can run."""
        order = self._order()
        places = {first: place for place, first in enumerate(order)}
        return tuple(
            Block(
                tuple(sorted(self._nodes[first])),
                sum(1 << places[other] for other in self._before[first]),
            )
            for first in order
        )

    def _in_series(self, first: int, second: int) -> bool:
        return (
            first in self._nodes
            and second in self._nodes
            and self._after[first] == {second}
            and self._before[second] == {first}
        )

    def _weight(self, first: int, second: int) -> float:
        return self._weights.get(first, 0.0) + self._weights.get(second, 0.0)

    def _join(self, first: int, second: int) -> None:
        self._nodes[first] += self._nodes.pop(second)
        self._weights[first] += self._weights.pop(second)
        self._after[first] = self._after.pop(second)
        del self._before[second]
        for other in self._after[first]:
            self._before[other] = self._before[other] - {second} | {first}

    def _order(self) -> list[int]:
        """By first nodes, as far as what comes before lets it."""
        waiting = {first: len(before) for first, before in self._before.items()}
        ready = [first for first, count in waiting.items() if not count]
        heapq.heapify(ready)
        order: list[int] = []
        while ready:
            first = heapq.heappop(ready)
            order.append(first)
            for other in self._after[first]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, other)
        return order


def edges(model: graph.Graph) -> set[tuple[int, int]]:
    """Pairs of nodes of which the first must run before the second.

    Besides tensors, variables that calls change (seeds, statistics) keep their calls in order.
    """
    makers = costs.makers(model.nodes)
    pairs = {
        (makers[tensor], place)
        for place, node in enumerate(model.nodes)
        for tensor in node.inputs
        if tensor in makers
    }
    last: dict[str, int] = {}
    for place, node in enumerate(model.nodes):
        for key in node.variables:
            if not model.variables[key].trainable:
                if key in last:
                    pairs.add((last[key], place))
                last[key] = place
    return pairs


def stages(
    model: graph.Graph,
    blocks: Sequence[Block],
    colocated: Collection[tuple[int, ...]],
    membership: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Tell which stages there may be that begin behind one downset and end with another one.

    A stage has all calls that change the same variables, or none of them. Of moving statistics
    there can be one copy only, and the engine refuses more. And it computes something besides
    masks, or a device would have no work.

    Args:
        colocated: positions of nodes that have to be in one stage, all of a tuple.
        membership: 1 where a downset (row) has a block (column), else 0.
    """
    inside = membership @ (1 - membership.T)  # blocks of the first that the second lacks
    works = membership @ np.array([not _only_masks(model, one) for one in blocks], dtype=float)
    valid = (inside == 0) & (works[None, :] > works[:, None])
    home = {node: place for place, one in enumerate(blocks) for node in one.nodes}
    for nodes in colocated:
        places = sorted({home[node] for node in nodes})
        totals = membership[:, places].sum(axis=1)
        count = totals[None, :] - totals[:, None]
        valid &= (count == 0) | (count == len(places))
    return np.asarray(valid)


def most_stages(valid: npt.NDArray[np.bool_]) -> int:
    """The number of stages that a model can be cut into; any smaller one is possible, too."""
    longest = np.where(valid[0], 1.0, -np.inf)
    for place in range(1, len(valid)):  # a downset comes behind all that it holds
        longest = np.maximum(longest, np.where(valid[place], longest[place] + 1, -np.inf))
    return int(longest[-1])


def why_not_more(
    model: graph.Graph, blocks: Sequence[Block], colocated: Collection[tuple[int, ...]]
) -> str:
    """Say why there cannot be as many stages as blocks."""
    reasons = [
        f"{model.nodes[nodes[0]].name} is called {len(nodes)} times and gathers statistics, of "
        "which there can be one copy only"
        for nodes in sorted(colocated)
    ]
    if any(_only_masks(model, one) for one in blocks):
        reasons.append("a mask alone is no stage")
    return "; ".join(reasons)


def _only_masks(model: graph.Graph, block: Block) -> bool:
    return all(model.nodes[node].kind is graph.Kind.MASK for node in block.nodes)
