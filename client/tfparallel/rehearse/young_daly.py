"""Goodput of a job whose processes fail at random, by the models of Young and Daly.

J. W. Young, A first order approximation to the optimum checkpoint interval, Communications of the
ACM 17 (9), 1974, pages 530 and 531. J. T. Daly, A higher order estimate of the optimum checkpoint
interval for restart dumps, Future Generation Computer Systems 22 (3), 2006, pages 303 to 312. It
has the expected time to the end and the best interval, used here. Failures come independently of
each other, with exponential times between them.
"""

import dataclasses
import math


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What checkpoints and failures cost, in seconds."""

    pause: float
    """Training stands still for a checkpoint."""
    write: float
    """A checkpoint is written while training continues; a failure meanwhile loses it."""
    restart: float
    """From a failure to the first step after it."""


def estimate_goodput(interval: float, costs: Costs, between_failures: float) -> float:
    """Return the share of the time in which a long job makes steps that it keeps.

    Args:
        interval: seconds of training between two checkpoints; more than 0.
        between_failures: mean seconds between two failures of the job; more than 0.
    """
    # A failure during a write returns to the checkpoint before: all failures lose that much more.
    restart = (costs.restart + costs.write) / between_failures
    exponent = (interval + costs.pause) / between_failures
    if restart + exponent > math.log(1e12):  # The job hardly ever comes to its next checkpoint.
        return 0.0
    return interval / (between_failures * math.exp(restart) * math.expm1(exponent))


def find_best_interval(costs: Costs, between_failures: float) -> float:
    """Return the seconds of training between two checkpoints for the highest goodput.

    0: a checkpoint costs nothing, so the more often the better.
    """
    if costs.pause >= 2 * between_failures:
        return between_failures
    ratio = costs.pause / (2 * between_failures)
    young = math.sqrt(2 * costs.pause * between_failures)
    return young * (1 + math.sqrt(ratio) / 3 + ratio / 9) - costs.pause
