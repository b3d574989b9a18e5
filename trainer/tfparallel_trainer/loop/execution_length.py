"""At most how many steps one call of TensorFlow computes, if the job does not say it.

Only the chief looks at a clock: it requests a report when a second has passed since the last one.
All processes learn of that in the same step, so they count the same steps since then and choose
alike. The choice changes no number (see `engines.mesh.repetition`), so another attempt may choose
in another step.
"""

import math
from typing import Any

from tfparallel_trainer.data import nest

CHOSEN_STEPS = 16
"""From here on, the loop around the steps costs less than a tenth of what single calls cost."""
SHORT_STEPS = 100
"""So many steps in a second are short: a call costs each of them several percent."""
REMAINING_STEPS = 2000
"""So many steps save more than the loop costs when it is built."""
_MOST_BYTES = 16 << 20
"""Of the batches of an execution, which are in memory together."""


class ExecutionLength:
    """The most steps of an execution: one until many short steps are seen, or what the job says."""

    def __init__(self, steps_per_execution: int | None, batch_bytes: float) -> None:
        """`batch_bytes`: of a batch over all ranks; infinite if unknown."""
        self.most = steps_per_execution or 1
        fitting = min(CHOSEN_STEPS, int(_MOST_BYTES / max(batch_bytes, 1)))
        self._choice = max(1, fitting) if steps_per_execution is None else self.most
        self._reported = math.inf

    def choose(self, step: int, total: int | None) -> int:
        """Choose the most steps after a step with which a report was requested.

        `total`: steps to make in all, if known.
        """
        is_short = step - self._reported >= SHORT_STEPS
        is_long_run = total is not None and total - step >= REMAINING_STEPS
        return self._choice if is_short and is_long_run else self.most

    def reported(self, step: int) -> None:
        """Count steps from this one on: all processes report after it."""
        self._reported = step


def count_bytes(spec: Any, examples: int) -> float:
    """Bytes of a batch; infinite if an example has a size that varies.

    Args:
        spec: of a part, as tf.TensorSpec [None, …].
        examples: of the batch, over all ranks.
    """
    total = 0
    for leaf in nest.leaves(spec):
        elements = leaf.shape[1:].num_elements()
        if elements is None or not leaf.dtype.size:  # texts have none
            return math.inf
        total += elements * leaf.dtype.size
    return float(total * examples)
