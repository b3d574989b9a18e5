"""When each stage does what in one step, from the ordered lists of the stages. Pure."""

import collections
import dataclasses
from collections.abc import Callable, Mapping, Sequence

from tfparallel_trainer.engines.split.pipeline import communication


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A rank does a step of its list."""

    rank: int
    step: communication.Step
    begin: float
    end: float


def run(
    lists: Mapping[int, Sequence[communication.Step]],
    seconds: Callable[[int, communication.Step], float],
) -> tuple[Span, ...]:
    """Let every rank do its list; all ranks of a rendezvous are busy until it ends.

    Args:
        lists: ordered lists that come to their end, as `communication.simulate` finds.
        seconds: how long a rank takes for a step; for a rendezvous, its first rank is asked.
    """
    place = dict.fromkeys(lists, 0)
    clock = dict.fromkeys(lists, 0.0)
    at: dict[int, communication.Step] = {}
    ready = collections.deque(lists)
    spans: list[Span] = []
    while ready:
        rank = ready.popleft()
        if place[rank] == len(lists[rank]):
            continue
        step = at[rank] = lists[rank][place[rank]]
        participants = (rank,) if isinstance(step, communication.Compute) else step.ranks
        if any(at.get(participant) != step for participant in participants):
            continue
        begin = max(clock[participant] for participant in participants)
        end = begin + seconds(participants[0], step)
        for participant in participants:
            spans.append(Span(participant, step, begin, end))
            clock[participant] = end
            del at[participant]
            place[participant] += 1
            ready.append(participant)
    return tuple(sorted(spans, key=lambda span: (span.rank, span.begin, span.end)))
