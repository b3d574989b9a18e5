"""What every stage that two downsets leave between them holds of variables, as matrices. Pure."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.split.planning import costs, cuts

Share = tuple[costs.Variable, float]
"""A variable, and a rank's share of it."""


class Variables:
    """Of one rank."""

    def __init__(
        self,
        held: Sequence[tuple[npt.NDArray[np.bool_], Sequence[Share]]],
        known: costs.Costs,
        count: int,
    ) -> None:
        """Args:
        held: which stages have some variables, and these.
        known: what the model costs.
        count: of downsets.
        """
        whole = np.zeros((6, count, count))
        for has, own in held:
            total = np.zeros(5)
            for one, share in own:
                changed = one.gradients if one.slots else 0
                each = (one.parameters, one.gradients, one.slots, changed * known.copies)
                total[:4] += share * np.array(each)
                total[4] += one.gradients > 0
            whole[:5] += has * total[:, None, None]
            largest = max(one.gradients * share for one, share in own)
            whole[5] = np.maximum(whole[5], has * largest)
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
