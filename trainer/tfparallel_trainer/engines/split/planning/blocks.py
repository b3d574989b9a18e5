"""Where a graph can be cut: its nodes joined to blocks, and sets of blocks that come first. Pure.

A cut of a graph is a set of blocks that holds, with each block, all that come before it: a downset.
Stages are the differences between one downset and the next. A chain has as many downsets as blocks;
a graph with branches has more, up to all subsets.
"""

import collections
import dataclasses
import heapq
import itertools
import operator
from collections.abc import Callable, Collection, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph


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
    """Give the finest blocks whose downsets are few enough, or fine ones and some of these."""
    for share in _FINENESS:
        blocks = condense(model, weights, max(2, int(share * most) - 1))
        every = downsets(blocks, most)
        if every is not None:
            return blocks, every
    blocks = condense(model, weights, most - 1)
    return blocks, some_downsets(blocks, most)


def condense(model: graph.Graph, weights: Sequence[float], most: int) -> tuple[Block, ...]:
    """Join nodes that follow each other in series until there are few blocks, in running order.

    Two blocks are in series when the first has no other successor and the second no other
    predecessor. The cheapest pair is joined first. What is not in series stays apart, few or many.
    """
    pairs = _edges(model)
    leaving = collections.Counter(first for first, _ in pairs)
    entering = collections.Counter(second for _, second in pairs)
    after = {first: second for first, second in pairs if leaving[first] == entering[second] == 1}
    before = {second: first for first, second in after.items()}
    # Blocks are told by their first node, the only one that others come before.
    nodes: dict[int, tuple[int, ...]] = {index: (index,) for index in range(len(model.nodes))}
    weight = dict(enumerate(weights))
    lightest = [(weight[first] + weight[second], first, second) for first, second in after.items()]
    heapq.heapify(lightest)
    while len(nodes) > most and lightest:
        total, first, second = heapq.heappop(lightest)
        if after.get(first) != second or total != weight[first] + weight[second]:
            continue  # one of the two has been joined to another one since
        nodes[first] += nodes.pop(second)
        weight[first] = total
        del after[first], before[second]
        if second in after:
            after[first] = following = after.pop(second)
            before[following] = first
            heapq.heappush(lightest, (total + weight[following], first, following))
        if first in before:
            heapq.heappush(lightest, (weight[before[first]] + total, before[first], first))
    order = sorted(nodes)  # as the model runs its nodes
    home = {node: index for index, first in enumerate(order) for node in nodes[first]}
    bits = [0] * len(order)
    for first, second in pairs:
        if home[first] != home[second]:
            bits[home[second]] |= 1 << home[first]
    return tuple(
        Block(nodes[first], block_bits) for first, block_bits in zip(order, bits, strict=True)
    )


def _edges(model: graph.Graph) -> set[tuple[int, int]]:
    """Pairs of nodes of which the first must run before the second.

    Besides tensors, variables that calls change (seeds, statistics) keep their calls in order.
    """
    pairs: set[tuple[int, int]] = set()
    makers: dict[int, int] = {}
    last: dict[str, int] = {}
    for index, node in enumerate(model.nodes):
        changed = [key for key in node.variables if not model.variables[key].trainable]
        pairs |= {(makers[tensor], index) for tensor in node.inputs if tensor in makers}
        pairs |= {(last[key], index) for key in changed if key in last}
        makers |= dict.fromkeys(node.outputs, index)
        last |= dict.fromkeys(changed, index)
    return pairs


def some_downsets(blocks: Sequence[Block], most: int) -> tuple[int, ...]:
    """Return up to `most` downsets, from the empty one to the whole.

    They are those of three orders in which the blocks can run. These are the order of the model,
    depth first, and one that first finishes what it has begun.
    """
    deepest = _ordered(
        blocks, lambda block, last: last.index(block) if block in last else len(blocks)
    )
    frugal = _ordered(blocks, lambda block, _: -blocks[block].before.bit_count())
    orders = (range(len(blocks)), deepest, frugal)
    every = itertools.chain.from_iterable(
        itertools.accumulate((1 << index for index in order), operator.or_, initial=0)
        for order in orders
    )
    prefixes = list(dict.fromkeys(every))
    step = -(-len(prefixes) // (most - 1))
    return _sorted({0, (1 << len(blocks)) - 1, *prefixes[::step]})


def _sorted(downsets: set[int]) -> tuple[int, ...]:
    return tuple(sorted(downsets, key=lambda downset: (downset.bit_count(), downset)))


def downsets(blocks: Sequence[Block], most: int) -> tuple[int, ...] | None:
    """All downsets as bits, those with few blocks first; None when there are more than so many."""
    downsets_so_far = {0}
    last = {0}
    while last:
        grown = {
            downset | 1 << index
            for downset in last
            for index, block in enumerate(blocks)
            if not downset >> index & 1 and block.before & downset == block.before
        }
        downsets_so_far |= grown
        if len(downsets_so_far) > most:
            return None
        last = grown
    return _sorted(downsets_so_far)


_Rank = Callable[[int, list[int]], int]
"""How soon a block should run, given the successors of those that ran, latest first."""


def _ordered(blocks: Sequence[Block], rank: _Rank) -> list[int]:
    done = 0
    order: list[int] = []
    newly: list[int] = []
    left = set(range(len(blocks)))
    while left:
        ready = [block for block in left if blocks[block].before & done == blocks[block].before]
        index = min(ready, key=lambda block: (rank(block, newly), block))
        left.remove(index)
        done |= 1 << index
        order.append(index)
        newly = [block for block in left if blocks[block].before >> index & 1] + newly
    return order


def stages(
    model: graph.Graph,
    blocks: Sequence[Block],
    colocated: Collection[tuple[int, ...]],
    membership: npt.NDArray[np.float64],
) -> npt.NDArray[np.bool_]:
    """Tell which stages there may be that begin behind one downset and end with another one.

    A stage has all calls that change the same variables, or none of them. Of moving statistics
    there is one copy only. And it computes more than masks, or a device would have no work.

    Args:
        colocated: positions of nodes that have to be in one stage, all of a tuple.
        membership: 1 where a downset (row) has a block (column), else 0.
    """
    inside = membership @ (1 - membership.T)  # blocks of the first that the second lacks
    works = membership @ np.array([not _only_masks(model, block) for block in blocks], dtype=float)
    valid = (inside == 0) & (works[None, :] > works[:, None])
    home = {node: index for index, block in enumerate(blocks) for node in block.nodes}
    for nodes in colocated:
        places = sorted({home[node] for node in nodes})
        totals = membership[:, places].sum(axis=1)
        count = totals[None, :] - totals[:, None]
        valid &= (count == 0) | (count == len(places))
    return np.asarray(valid)


def most_stages(valid: npt.NDArray[np.bool_]) -> int:
    """The number of stages that a model can be cut into; any smaller one is possible, too."""
    longest = np.where(valid[0], 1.0, -np.inf)
    for index in range(1, len(valid)):  # a downset comes behind all that it holds
        longest = np.maximum(longest, np.where(valid[index], longest[index] + 1, -np.inf))
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
    if any(_only_masks(model, block) for block in blocks):
        reasons.append("a mask alone is no stage")
    return "; ".join(reasons)


def _only_masks(model: graph.Graph, block: Block) -> bool:
    return all(model.nodes[node].kind is graph.NodeKind.MASK for node in block.nodes)
