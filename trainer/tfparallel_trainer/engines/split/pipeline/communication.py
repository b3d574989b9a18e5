"""What each rank sends, takes and sums, as an ordered list; and whether that can come to its end.

Every message blocks until the other end is there, as a collective operation does, and a rank does
its list in order. So a list that ends here ends on any device, whatever it buffers. Pure.
"""

import collections
import dataclasses
from collections.abc import Hashable, Iterable, Mapping, Sequence


@dataclasses.dataclass(frozen=True, slots=True)
class Compute:
    """Work of one rank alone."""

    what: Hashable
    duration: float = 1.0

    def __str__(self) -> str:
        return str(self.what)


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """What several ranks do together: a send with its receive, or a sum over a group.

    It takes place when each of its ranks is at an equal rendezvous. `tag` distinguishes what the
    same ranks do together at different places of their lists.
    """

    kind: str
    ranks: tuple[int, ...]
    tag: Hashable

    def __str__(self) -> str:
        return f"{self.kind} of {self.tag} among ranks {', '.join(map(str, self.ranks))}"


Step = Compute | Rendezvous


def message(source: int, target: int, tag: Hashable) -> Rendezvous:
    """A tensor that one rank sends and another takes; both have it in their lists."""
    return Rendezvous("message", (source, target), tag)


def total(ranks: Sequence[int], tag: Hashable) -> Rendezvous:
    """A sum, or any other collective operation, over a group."""
    return Rendezvous("total", tuple(ranks), tag)


@dataclasses.dataclass(frozen=True, slots=True)
class Simulation:
    """How far ranks came when each did its list in order."""

    waiting: Mapping[int, Step]
    """The ranks that wait forever, and for what; empty when all came to the end."""
    finished: Mapping[int, float]
    """When each rank came as far as it could; messages take no time."""
    busy: Mapping[int, float]
    """How long each rank worked."""

    def __str__(self) -> str:
        if not self.waiting:
            return "every rank comes to its end"
        return "; ".join(f"rank {rank} waits at {step}" for rank, step in self.waiting.items())


def simulate(lists: Mapping[int, Iterable[Step]]) -> Simulation:
    """Let every rank do its list.

    Raises:
        ValueError: a rank has a rendezvous that it does not belong to, or twice.
    """
    steps = {rank: list(rank_steps) for rank, rank_steps in lists.items()}
    _check(steps)
    place = dict.fromkeys(steps, 0)
    clock = dict.fromkeys(steps, 0.0)
    busy = dict.fromkeys(steps, 0.0)
    at: dict[int, Step] = {}
    ready = collections.deque(steps)
    while ready:
        rank = ready.popleft()
        if place[rank] == len(steps[rank]):
            continue
        step = at[rank] = steps[rank][place[rank]]
        if isinstance(step, Compute):
            clock[rank] += step.duration
            busy[rank] += step.duration
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
            place[participant] += 1
            ready.append(participant)
    return Simulation(waiting=at, finished=clock, busy=busy)


def _check(steps: Mapping[int, Sequence[Step]]) -> None:
    for rank, rank_steps in steps.items():
        for step in rank_steps:
            if isinstance(step, Rendezvous) and step.ranks.count(rank) != 1:
                raise ValueError(f"rank {rank} takes part in the {step} not once")
