"""What every stage that two downsets leave between them holds of variables, as matrices. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.planning import costs, cuts


def stages_with(
    membership: npt.NDArray[np.float64], places: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Find the stages that have any of some blocks; `membership` is as in `MemoryOfVariables`."""
    count = membership[:, places].sum(axis=1)
    return np.asarray(count[None, :] > count[:, None])


class MemoryOfVariables:
    """Of one rank, in bytes."""

    def __init__(
        self,
        subject: costs.Subject,
        shardings: Sequence[costs.Sharding],
        block_of: Mapping[int, int],
        membership: npt.NDArray[np.float64],
    ) -> None:
        """Take the block of each node, and 1 where a downset (row) has a block (column), else 0."""
        count, of_blocks = membership.shape
        sums = np.zeros((6, count, count))
        alone = np.zeros((5, of_blocks))
        for places, shares in _by_blocks(subject, shardings, block_of).items():
            has = stages_with(membership, places)
            total = np.zeros(5)
            for variable, share in shares:
                changed = variable.gradients if variable.slots else 0
                bytes_by_part = (
                    variable.parameters,
                    variable.gradients,
                    variable.slots,
                    changed * subject.costs.copies,
                )
                total[:4] += share * np.array(bytes_by_part)
                total[4] += variable.gradients > 0
            if len(places) == 1:
                alone[:, places[0]] = total
            else:
                sums[:5] += has * total[:, None, None]
            largest = max(variable.gradients * share for variable, share in shares)
            sums[5] = np.maximum(sums[5], has * largest)
        # Those that one block reads, which are most, at once.
        sums[:5] += ((1 - membership) * alone[:, None, :]) @ membership.T
        self.parameters: cuts.Matrix = sums[0]
        self.gradients: cuts.Matrix = sums[1]
        self._slots: cuts.Matrix = sums[2]
        self._copies: cuts.Matrix = sums[3]
        self._fixed_slots = subject.costs.fixed_slots
        self.trained: cuts.Matrix = sums[4]
        """How many are trained, in numbers."""
        self.largest: cuts.Matrix = sums[5]
        """The largest gradient."""

    def slots(self, ranks: int) -> cuts.Matrix:
        """The optimizer's slots, where so many ranks along the data axis share those of weights."""
        return np.asarray(self._slots / ranks + self._fixed_slots)

    def copies(self, ranks: int) -> cuts.Matrix:
        """The copies of gradients while an optimizer with slots updates."""
        return np.asarray(self._copies / ranks)

    def state(self, ranks: int) -> cuts.Matrix:
        """What is there all the time."""
        return self.parameters + self.gradients + self.slots(ranks)


def _by_blocks(
    subject: costs.Subject, shardings: Sequence[costs.Sharding], block_of: Mapping[int, int]
) -> dict[tuple[int, ...], list[tuple[costs.VariableCosts, float]]]:
    """Variables and a rank's share of each, by the blocks that read them."""
    readers: dict[str, set[int]] = {}
    shares: dict[str, float] = {}
    for index, (node, sharding) in enumerate(zip(subject.model.nodes, shardings, strict=True)):
        for key in node.variables:
            readers.setdefault(key, set()).add(block_of[index])
            shares[key] = min(shares.get(key, 1.0), sharding.variables.get(key, 1.0))
    grouped: dict[tuple[int, ...], list[tuple[costs.VariableCosts, float]]] = {}
    for key, places in readers.items():
        variable = (subject.costs.variables[key], shares[key])
        grouped.setdefault(tuple(sorted(places)), []).append(variable)
    return grouped
