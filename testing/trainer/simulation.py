"""Checks whether ranks that work through their ordered lists finish them.

A message blocks until the other end is there. So lists that end here end on any device, whatever it
buffers.
"""

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from tfparallel_trainer.engines.split.pipeline import programs, schedule


@dataclasses.dataclass(frozen=True, slots=True)
class Simulation:
    """How far each rank got through its list."""

    pending: Mapping[int, programs.Step]
    """The ranks that wait forever, and for what; empty when all came to the end."""
    finished: Mapping[int, float]
    """When each rank got as far as it could; each action takes 1, messages take no time."""
    busy: Mapping[int, float]
    """How long each rank worked."""

    def __str__(self) -> str:
        if not self.pending:
            return "every rank comes to its end"
        return "; ".join(f"rank {rank} waits at {step}" for rank, step in self.pending.items())


def simulate(lists: Mapping[int, Iterable[programs.Step]]) -> Simulation:
    """Run every rank's list.

    Raises:
        ValueError: a rank has a collective operation that it is not part of, or twice.
    """
    steps = {rank: list(rank_steps) for rank, rank_steps in lists.items()}
    _check(steps)
    positions = dict.fromkeys(steps, 0)
    clock = dict.fromkeys(steps, 0.0)
    busy = dict.fromkeys(steps, 0.0)
    at: dict[int, programs.Step] = {}
    ready = collections.deque(steps)
    while ready:
        rank = ready.popleft()
        if positions[rank] == len(steps[rank]):
            continue
        step = at[rank] = steps[rank][positions[rank]]
        if isinstance(step, schedule.Action):
            clock[rank] += 1.0
            busy[rank] += 1.0
            participants: tuple[int, ...] = (rank,)
        elif all(at.get(participant) == step for participant in step.ranks):
            participants = step.ranks
            clock |= dict.fromkeys(
                participants, max(clock[participant] for participant in participants)
            )
        else:
            continue
        for participant in participants:
            del at[participant]
            positions[participant] += 1
            ready.append(participant)
    return Simulation(pending=at, finished=clock, busy=busy)


def _check(steps: Mapping[int, Sequence[programs.Step]]) -> None:
    for rank, rank_steps in steps.items():
        for step in rank_steps:
            if isinstance(step, programs.Collective) and step.ranks.count(rank) != 1:
                raise ValueError(f"rank {rank} takes part in the {step} not once")
