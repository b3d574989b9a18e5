"""Orders the variables of a container that use each other, as `$(NAME)`. Pure.

The kubelet replaces a name only by variables that come earlier in the list, and leaves any other
name as it is. The operator, the installation's defaults, `trainer.env` and the template all add to
one list. None of them can know the position of another's variables.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_REFERENCE = re.compile(r"\$\$|\$\(([^)]{0,255})\)")


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` as Kubernetes does: an unknown name stays, and `$$` becomes `$`."""

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        return variables.get(match[1], match[0])

    # After the last bracket no reference can end, so no search runs to the end of a text in vain.
    closed, bracket, remainder = text.rpartition(")")
    return _REFERENCE.sub(replaced, closed + bracket) + remainder.replace("$$", "$")


def order(variables: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the same variables, each after the variables that it uses.

    If the order is right already, it stays. In a circle, one of the variables comes first.
    """
    places: dict[Any, int] = {}
    for position, variable in enumerate(variables):
        places.setdefault(variable.get("name"), position)

    def used(index: int) -> Iterator[int]:
        names = _references(variables[index].get("value"))
        return (places[name] for name in names if name in places)

    ordered: list[Mapping[str, Any]] = []
    begun: set[int] = set()
    for position in range(len(variables)):
        path = [] if position in begun else [(position, used(position))]
        begun.add(position)
        while path:
            current, remaining = path[-1]
            earlier = next((name for name in remaining if name not in begun), None)
            if earlier is None:
                path.pop()
                ordered.append(variables[current])
            else:
                begun.add(earlier)
                path.append((earlier, used(earlier)))
    return ordered


def _references(value: Any) -> Iterator[str]:
    """Yield the names that a value uses."""
    if isinstance(value, str) and "$(" in value:
        closed, bracket, _ = value.rpartition(")")
        for match in _REFERENCE.finditer(closed + bracket):
            if match[0] != "$$":
                yield match[1]
