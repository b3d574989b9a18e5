"""Which stages there may be between two downsets of blocks. Pure.

A stage has all calls that change the same variables, or none of them. Of moving statistics there
can be one copy only, and the engine refuses more. And it computes something besides masks, or a
device would have no work.
"""

from collections.abc import Collection, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import blocks

Between = npt.NDArray[np.bool_]
"""Of each stage that begins behind one downset and ends with another one, by their places."""


def stages(
    model: graph.Graph,
    blocks: Sequence[blocks.Block],
    colocated: Collection[tuple[int, ...]],
    membership: npt.NDArray[np.float64],
) -> Between:
    """Tell which stages there may be.

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


def most(valid: Between) -> int:
    """The number of stages that a model can be cut into; any smaller one is possible, too."""
    longest = np.where(valid[0], 1.0, -np.inf)
    for place in range(1, len(valid)):  # a downset comes behind all that it holds
        longest = np.maximum(longest, np.where(valid[place], longest[place] + 1, -np.inf))
    return int(longest[-1])


def why_not_more(
    model: graph.Graph, blocks: Sequence[blocks.Block], colocated: Collection[tuple[int, ...]]
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


def _only_masks(model: graph.Graph, block: blocks.Block) -> bool:
    return all(model.nodes[node].kind is graph.Kind.MASK for node in block.nodes)
