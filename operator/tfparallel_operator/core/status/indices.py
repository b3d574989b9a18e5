"""Sets of indices as ranges such as 0-3,7: bounded text for any number of replicas."""

from collections.abc import Iterable


def parse(text: str) -> frozenset[int]:
    """Read ranges into the set of their indices."""
    parsed: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        parsed.update(range(int(first), int(last or first) + 1))
    return frozenset(parsed)


def format_ranges(indices: Iterable[int]) -> str:
    """Write indices as ranges in ascending order."""
    ranges: list[list[int]] = []
    for index in sorted(set(indices)):
        if ranges and index == ranges[-1][1] + 1:
            ranges[-1][1] = index
        else:
            ranges.append([index, index])
    return ",".join(f"{a}" if a == b else f"{a}-{b}" for a, b in ranges)
