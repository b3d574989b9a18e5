"""Which stages there may be between two downsets of blocks. Pure.

A stage has all calls that change the same variables, or none of them: of moving statistics there
can be one copy only, and the engine refuses more. And it computes something besides masks, or a
device would have no work.
"""

from collections.abc import Collection, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.split.model import graph
from tfparallel_trainer.split.planning import blocks

Between = npt.NDArray[np.bool_]
"""Of each stage that begins behind one downset and ends with another one, by their places."""


def stages(
    model: graph.Graph,
    made: Sequence[blocks.Block],
    together: Collection[tuple[int, ...]],
    member: npt.NDArray[np.float64],
) -> Between:
    """Tell which stages there may be.

    Args:
        model: the graph.
        made: its blocks.
        together: positions of nodes that have to be in one stage, all of a tuple.
        member: 1 where a downset (row) has a block (column), else 0.
    """
    inside = member @ (1 - member.T)  # blocks of the first that the second lacks
    works = member @ np.array([not _only_masks(model, one) for one in made], dtype=float)
    found = (inside == 0) & (works[None, :] > works[:, None])
    home = {node: place for place, one in enumerate(made) for node in one.nodes}
    for nodes in together:
        places = sorted({home[node] for node in nodes})
        held = member[:, places].sum(axis=1)
        count = held[None, :] - held[:, None]
        found &= (count == 0) | (count == len(places))
    return np.asarray(found)


def most(found: Between) -> int:
    """The number of stages that a model can be cut into; any smaller one is possible, too."""
    longest = np.where(found[0], 1.0, -np.inf)
    for place in range(1, len(found)):  # a downset comes behind all that it holds
        longest = np.maximum(longest, np.where(found[place], longest[place] + 1, -np.inf))
    return int(longest[-1])


def why_not_more(
    model: graph.Graph, made: Sequence[blocks.Block], together: Collection[tuple[int, ...]]
) -> str:
    """Say why there cannot be as many stages as blocks."""
    return "; ".join(_reasons(model, made, together))


def _reasons(
    model: graph.Graph, made: Sequence[blocks.Block], together: Collection[tuple[int, ...]]
) -> Iterator[str]:
    for nodes in sorted(together):
        yield (
            f"{model.nodes[nodes[0]].name} is called {len(nodes)} times and gathers statistics, of "
            "which there can be one copy only"
        )
    if any(_only_masks(model, one) for one in made):
        yield "a mask alone is no stage"


def _only_masks(model: graph.Graph, block: blocks.Block) -> bool:
    return all(model.nodes[node].kind is graph.Kind.MASK for node in block.nodes)
