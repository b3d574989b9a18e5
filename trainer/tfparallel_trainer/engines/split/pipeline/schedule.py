"""In which order a stage works: forward and backward of each microbatch. Pure.

A schedule says what each stage does; `programs` turns it into the messages of each rank.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator


class Pass(enum.StrEnum):
    """What a stage does with a microbatch."""

    FORWARD = "forward"
    BACKWARD = "backward"


@dataclasses.dataclass(frozen=True, slots=True)
class Action:
    """One turn of a stage."""

    work: Pass
    microbatch: int

    def __str__(self) -> str:
        return f"{self.work} of microbatch {self.microbatch}"


Schedule = Callable[[int, int, int], Iterator[Action]]
"""Gives the actions of a stage from (stages, microbatches, stage)."""


def gpipe(stages: int, microbatches: int, stage: int) -> Iterator[Action]:
    """All forwards, then all backwards; every microbatch is held meanwhile.

    Backwards go in reverse, so what was computed last, and is still near, is used first.
    """
    yield from forwards(stages, microbatches, stage)
    for microbatch in reversed(range(microbatches)):
        yield Action(Pass.BACKWARD, microbatch)


def one_forward_one_backward(stages: int, microbatches: int, stage: int) -> Iterator[Action]:
    """As many forwards as stages follow, then one backward for each forward (1F1B).

    A stage holds at most `stages - stage` microbatches, whatever their number.
    """
    _check(stages, microbatches, stage)
    ahead = min(stages - stage - 1, microbatches)
    for microbatch in range(ahead):
        yield Action(Pass.FORWARD, microbatch)
    for microbatch in range(microbatches - ahead):
        yield Action(Pass.FORWARD, microbatch + ahead)
        yield Action(Pass.BACKWARD, microbatch)
    for microbatch in range(microbatches - ahead, microbatches):
        yield Action(Pass.BACKWARD, microbatch)


def forwards(stages: int, microbatches: int, stage: int) -> Iterator[Action]:
    """One forward after the other, as when a model is evaluated."""
    _check(stages, microbatches, stage)
    for microbatch in range(microbatches):
        yield Action(Pass.FORWARD, microbatch)


def peak_microbatches(actions: Iterator[Action]) -> int:
    """The most microbatches whose activations a stage holds at one time."""
    now = most = 0
    for action in actions:
        now += 1 if action.work is Pass.FORWARD else -1
        most = max(most, now)
    return most


def bubble(stages: int, microbatches: int) -> float:
    """The share of time that a stage waits in either schedule, if all work takes equally long."""
    return (stages - 1) / (microbatches + stages - 1)


def _check(stages: int, microbatches: int, stage: int) -> None:
    if microbatches < 1 or not 0 <= stage < stages:
        raise ValueError(
            f"stage {stage} of {stages} stages with {microbatches} microbatches does not exist"
        )
