"""What each rank sends, takes and sums, as an ordered list. Pure.

Every message blocks until the other end is there, as a collective operation does, and a rank does
its list in order. So lists that end that way end on any device, whatever it buffers.
"""

import dataclasses
from collections.abc import Hashable, Sequence


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
