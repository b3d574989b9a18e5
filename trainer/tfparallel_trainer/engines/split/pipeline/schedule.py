"""The order of a stage's forward and backward passes.

Pure. A schedule lists the passes of each stage; `programs` adds the messages of each rank.
"""

import dataclasses
import enum
from collections.abc import Callable, Iterator


class Pass(enum.StrEnum):
    """The kind of a stage's work on a microbatch."""

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
"""Returns the actions of a stage. Takes the number of stages, of microbatches, and the stage."""


def gpipe(stages: int, microbatches: int, stage: int) -> Iterator[Action]:
    """All forward passes, then all backward passes.

    Activations of all microbatches are in memory. Backward passes go in reverse order, so the
    latest activations, still in caches, are used first.
    """
    yield from forwards(stages, microbatches, stage)
    for microbatch in reversed(range(microbatches)):
        yield Action(Pass.BACKWARD, microbatch)


def one_forward_one_backward(stages: int, microbatches: int, stage: int) -> Iterator[Action]:
    """One forward pass for each later stage, then backward and forward in turn (1F1B).

    A stage has activations of at most `stages - stage` microbatches, whatever their number.
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
    """One forward pass after the other, as in an evaluation."""
    _check(stages, microbatches, stage)
    for microbatch in range(microbatches):
        yield Action(Pass.FORWARD, microbatch)


def peak_microbatches(actions: Iterator[Action]) -> int:
    """The maximum number of microbatches whose activations a stage has at one time."""
    now = most = 0
    for action in actions:
        now += 1 if action.work is Pass.FORWARD else -1
        most = max(most, now)
    return most


def bubble(stages: int, microbatches: int) -> float:
    """The share of time for which a stage waits, if all work takes equally long."""
    return (stages - 1) / (microbatches + stages - 1)


def _check(stages: int, microbatches: int, stage: int) -> None:
    if microbatches < 1 or not 0 <= stage < stages:
        raise ValueError(
            f"stage {stage} of {stages} stages with {microbatches} microbatches does not exist"
        )
