"""Tensors that go from one block to others, and the stages that take or give them. Pure."""

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import cuts


class Crossing:
    """Of one model in blocks, with its stages between two downsets."""

    def __init__(
        self,
        model: graph.Graph,
        makers: Mapping[int, int],
        block_of: Mapping[int, int],
        membership: npt.NDArray[np.float64],
    ) -> None:
        """Args:
        model: the graph.
        makers: the node that makes each tensor.
        block_of: the block of each node.
        membership: 1 where a downset (row) has a block (column), else 0.
        """
        takers: dict[int, set[int]] = {}
        for place, node in enumerate(model.nodes):
            for tensor in node.inputs:
                if tensor in makers:
                    takers.setdefault(tensor, set()).add(block_of[place])
        home = {tensor: block_of[makers[tensor]] for tensor in takers}
        self.tensors = tuple(one for one, places in takers.items() if places != {home[one]})
        """Those that may leave a block."""
        total = np.array([len(takers[one]) for one in self.tensors], dtype=int)
        shape = (len(total), len(membership))
        has_maker = np.array([membership[:, home[one]] for one in self.tensors]).reshape(shape)
        count = np.array([membership[:, sorted(takers[one])].sum(axis=1) for one in self.tensors])
        count = count.reshape(shape)
        self._before, self._within = 1 - has_maker, has_maker * (count < total[:, None])
        # For each number of takers that there may be before a stage: one that takes it has more.
        self._of = np.repeat(np.arange(len(total)), total)
        number = (np.arange(len(self._of)) - np.repeat(np.cumsum(total) - total, total))[:, None]
        self._had = has_maker[self._of] * (count[self._of] == number)
        self._more = (count[self._of] > number).astype(float)

    def received(self, weights: cuts.Vector) -> cuts.Matrix:
        """Sums of weights over the tensors that a stage takes from others."""
        return np.asarray((self._had * weights[self._of, None]).T @ self._more)

    def sent(self, weights: cuts.Vector) -> cuts.Matrix:
        """Sums of weights over the tensors that a stage makes and that others take."""
        return np.asarray((self._before * weights[:, None]).T @ self._within)
