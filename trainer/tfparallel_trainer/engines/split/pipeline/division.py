"""When a loss that is a fraction can be divided, while its batch goes through stages in parts."""

import enum
from typing import Any

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.objective import loss, replica


class Division(enum.Enum):
    """When the denominators of the loss over a whole batch are known."""

    AHEAD = "ahead"
    """Always: they are in proportion to those of its parts."""
    BETWEEN = "between"
    """When all microbatches have gone forward and none backward."""
    LAST = "last"
    """When all is done; then there is one loss only, whose gradients are divided in the end."""


def of(compiled_head: replica.Replica, model: graph.Graph, spec: Any, *, adds: bool) -> Division:
    """Tell when the denominators of the loss over a batch are known.

    Args:
        compiled_head: the compiled head.
        model: the graph.
        spec: structure of a part of a batch.
        adds: whether layers add losses.
    """
    _, _, weight = spec
    masked = {one.name for one in model.outputs if one.mask is not None}
    unknown = [
        term
        for term in compiled_head.terms
        if term.output in masked or (term.reduction == loss.WEIGHTED_MEAN and weight is not None)
    ]
    if not any(term.divided for term in unknown):
        return Division.AHEAD
    several = len(compiled_head.terms) > 2 or adds  # one is what layers add
    return Division.BETWEEN if several else Division.LAST
