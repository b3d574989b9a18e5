"""Two runs compared by what they trained: start `MODULE` with both folders of results."""

from typing import Annotated

import pydantic

from tfparallel_trainer.contract import base

MODULE = "tfparallel_trainer.checkpoint.bitwise"
"""Run with `python -m` and two folders of results: prints a `WeightComparison` as JSON."""


class WeightComparison(base.Model):
    """The newest checkpoints of two runs: weights, optimizer state, and all other variables."""

    steps: tuple[int, int]
    """The step of each."""

    is_bit_equal: bool
    """Whether they have the same variables with the same bits, at the same step."""

    differing: Annotated[int, pydantic.Field(ge=0)]
    """How many variables differ, or are in one of them only."""

    largest_difference: Annotated[float, pydantic.Field(ge=0)] | None
    """Between two elements of a variable of the model; None: the shapes differ, or an element is
    not finite."""
