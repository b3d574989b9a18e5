"""Problems of a manifest: the field, and a sentence that says what to change. Pure."""

import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

Place = tuple[str | int, ...]
"""The path of a value: names of fields and indices of items."""

UNKNOWN = "extra_forbidden"
"""The type of pydantic's error for an unknown field."""

UNKNOWN_FIELD = "unknown field"
"""The beginning of the sentence on an unknown field."""

_LONGEST_VALUE = 200
"""Maximum number of characters of a value in a sentence."""

_KEY = "[key]"
_STATUS = "status"

_TYPE_REMEDIES = {
    "string_type": "put it in quotes",
    "model_type": "write fields, such as containers: [...]",
    "dict_type": "write fields, such as Worker: {replicas: 2}",
}
_LISTS = ("list_type", "tuple_type")
_VARIABLES = "env"
"""Lists of names with values, in a template too: Compose and others write fields there."""


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """A problem of a manifest."""

    location: Place
    message: str

    def __str__(self) -> str:
        return f"{path(self.location)}: {self.message}" if self.location else self.message


def path(location: Place) -> str:
    """Format a location, such as spec.trainer.env[0].name."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    return "".join(parts).removeprefix(".")


def show(value: Any) -> str:
    """Format a value for a sentence. A long one is cut, and its length follows."""
    shown = repr(value)
    if len(shown) <= _LONGEST_VALUE:
        return shown
    return f"{shown[:_LONGEST_VALUE]}… ({len(shown)} characters)"


def place_of(fault: Mapping[str, Any]) -> Place:
    """Return the location of an error of pydantic."""
    return tuple(part for part in fault["loc"] if part != _KEY)


def from_pydantic(
    fault: Mapping[str, Any], schema: Mapping[str, Any], outer: Place = ()
) -> Problem:
    """Convert an error of pydantic to a problem.

    Args:
        schema: the schema of jobs, for similar names.
        outer: the location of the value that pydantic has validated.
    """
    location = (*outer, *place_of(fault))
    kind, received = fault["type"], fault["input"]
    if kind == UNKNOWN:
        return unknown(location, schema)
    if kind == "missing":
        return Problem(location, "missing; it is required")
    message = _TYPE_REMEDIES.get(kind, fault["msg"].removeprefix("Value error, "))
    if kind in _LISTS:
        message = f"write a list, such as {_list_like(received, location, schema)}"
    if isinstance(received, Mapping):
        return Problem(location, message)
    expected = re.findall("'([^']+)'", str(fault.get("ctx", {}).get("expected", "")))
    hint = _did_you_mean(str(received), expected, prefix=": ")
    return Problem(location, f"received {show(received)}; {message[0].lower()}{message[1:]}{hint}")


def _list_like(received: Any, location: Place, schema: Mapping[str, Any]) -> str:
    """Return an example of the list at a location, in the flow style of YAML."""
    if location[-1:] == (_VARIABLES,) and isinstance(received, Mapping) and received:
        name, value = next(iter(received.items()))
        return f"[{{name: {name}, value: {show(str(value))}}}]"
    fields = _fields(schema, (*location, 0))[:2]
    return f"[{{{', '.join(f'{name}: …' for name in fields)}}}]" if fields else "[one, two]"


def unknown(
    location: Place, schema: Mapping[str, Any], siblings: Iterable[str] | None = None
) -> Problem:
    """Return the problem of an unknown field, with the field that the user may mean.

    Args:
        location: of the field.
        schema: the schema of jobs.
        siblings: the fields that exist there; None: those of the schema.
    """
    name = str(location[-1])
    others = _fields(schema, location[:-1]) if siblings is None else siblings
    if hint := _did_you_mean(name, others):
        return Problem(location, f"{UNKNOWN_FIELD}; {hint}")
    homes = [home for home in _homes(schema, name) if home != path(location[:-1])]
    if len(homes) == 1:
        hint = f"{name} belongs below {homes[0]}: move it there"
        return Problem(location, f"{UNKNOWN_FIELD}; {hint}")
    return Problem(location, f"{UNKNOWN_FIELD}; remove it or correct its spelling")


def _did_you_mean(name: str, candidates: Iterable[str], prefix: str = "") -> str:
    """Return a question with the most similar name; empty: none is similar."""
    by_lower = {other.lower(): other for other in candidates}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.7)
    return f"{prefix}did you mean {by_lower[near[0]]!r}?" if near else ""


def _fields(schema: Mapping[str, Any], location: Place) -> list[str]:
    """Return the names of the fields at a location."""
    node: Any = schema
    for part in location:
        inner = node.get("items") if isinstance(part, int) else _field(node, part)
        if not isinstance(inner, Mapping):
            return []
        node = inner
    return list(node.get("properties", {}))


def _field(node: Mapping[str, Any], name: str) -> Any:
    return node.get("properties", {}).get(name, node.get("additionalProperties"))


def _homes(node: Mapping[str, Any], name: str, below: str = "") -> Iterator[str]:
    """Yield the paths of all objects that have a field with a name, except in the status."""
    properties = node.get("properties", {})
    if below and name in properties:
        yield below
    for key, inner in properties.items():
        if (below, key) != ("", _STATUS):
            yield from _homes(inner, name, f"{below}.{key}".removeprefix("."))
    for inner, mark in ((node.get("additionalProperties"), ".ROLE"), (node.get("items"), "[]")):
        if isinstance(inner, Mapping):
            yield from _homes(inner, name, below + mark)
