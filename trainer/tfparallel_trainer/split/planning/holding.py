"""What every stage that two downsets leave between them holds of variables, as matrices. Pure."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.split.planning import costs, cuts

Share = tuple[costs.Variable, float]
"""A variable, and a rank's share of it."""


def stages_with(member: npt.NDArray[np.float64], places: Sequence[int]) -> npt.NDArray[np.bool_]:
    """Tell which stages have any of some blocks; `member` is as `Variables` takes it."""
    count = member[:, places].sum(axis=1)
    return np.asarray(count[None, :] > count[:, None])


class Variables:
    """Of one rank."""

    def __init__(
        self,
        held: Mapping[tuple[int, ...], Sequence[Share]],
        known: costs.Costs,
        member: npt.NDArray[np.float64],
    ) -> None:
        """Args:
        held: variables by the blocks that read them.
        known: what the model costs.
        member: 1 where a downset (row) has a block (column), else 0.
        """
        count, of_blocks = member.shape
        whole = np.zeros((6, count, count))
        alone = np.zeros((5, of_blocks))
        for places, own in held.items():
            has = stages_with(member, places)
            total = np.zeros(5)
            for one, share in own:
                changed = one.gradients if one.slots else 0
                each = (one.parameters, one.gradients, one.slots, changed * known.copies)
                total[:4] += share * np.array(each)
                total[4] += one.gradients > 0
            if len(places) == 1:
                alone[:, places[0]] = total
            else:
                whole[:5] += has * total[:, None, None]
            largest = max(one.gradients * share for one, share in own)
            whole[5] = np.maximum(whole[5], has * largest)
        # Those that one block reads, which are most, at once.
        whole[:5] += ((1 - member) * alone[:, None, :]) @ member.T
        self.parameters: cuts.Matrix = whole[0]
        """Bytes."""
        self.gradients: cuts.Matrix = whole[1]
        """Bytes."""
        self.slots: cuts.Matrix = whole[2] + known.fixed_slots
        """Bytes."""
        self.copies: cuts.Matrix = whole[3]
        """Bytes of the copies of gradients while an optimizer with slots updates."""
        self.trained: cuts.Matrix = whole[4]
        """How many are trained."""
        self.largest: cuts.Matrix = whole[5]
        """Bytes of the largest gradient."""

    @property
    def state(self) -> cuts.Matrix:
        """Bytes of parameters, gradients and slots together."""
        return self.parameters + self.gradients + self.slots
