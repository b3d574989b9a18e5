"""What every stage that two downsets leave between them holds of variables, as matrices. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.planning import costs, cuts

Share = tuple[costs.Variable, float]
"""A variable, and a rank's share of it."""


def stages_with(
    membership: npt.NDArray[np.float64], places: Sequence[int]
) -> npt.NDArray[np.bool_]:
    """Tell which stages have any of some blocks; `membership` is as `Variables` takes it."""
    count = membership[:, places].sum(axis=1)
    return np.asarray(count[None, :] > count[:, None])


class Variables:
    """Of one rank, in bytes."""

    def __init__(
        self,
        by_blocks: Mapping[tuple[int, ...], Sequence[Share]],
        known: costs.Costs,
        membership: npt.NDArray[np.float64],
    ) -> None:
        """Take a membership: 1 where a downset (row) has a block (column), else 0."""
        count, of_blocks = membership.shape
        sums = np.zeros((6, count, count))
        alone = np.zeros((5, of_blocks))
        for places, shares in by_blocks.items():
            has = stages_with(membership, places)
            total = np.zeros(5)
            for one, share in shares:
                changed = one.gradients if one.slots else 0
                each = (one.parameters, one.gradients, one.slots, changed * known.copies)
                total[:4] += share * np.array(each)
                total[4] += one.gradients > 0
            if len(places) == 1:
                alone[:, places[0]] = total
            else:
                sums[:5] += has * total[:, None, None]
            largest = max(one.gradients * share for one, share in shares)
            sums[5] = np.maximum(sums[5], has * largest)
        # Those that one block reads, which are most, at once.
        sums[:5] += ((1 - membership) * alone[:, None, :]) @ membership.T
        self.parameters: cuts.Matrix = sums[0]
        self.gradients: cuts.Matrix = sums[1]
        self.slots: cuts.Matrix = sums[2] + known.fixed_slots
        self.copies: cuts.Matrix = sums[3]
        """The copies of gradients while an optimizer with slots updates."""
        self.trained: cuts.Matrix = sums[4]
        """How many are trained, in numbers."""
        self.largest: cuts.Matrix = sums[5]
        """The largest gradient."""

    @property
    def state(self) -> cuts.Matrix:
        """Parameters, gradients and slots together."""
        return self.parameters + self.gradients + self.slots
