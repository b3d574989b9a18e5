"""Types of values as the API server checks them: nothing is converted, unlike in pydantic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import problems, rules


def mismatches(
    schema: Mapping[str, Any], value: Any, place: problems.Place = ()
) -> Iterator[problems.Problem]:
    """Yield a problem for each number, boolean and text that is of another type.

    The rest of the schema, and values of another shape, are left to the types of the job.
    """
    if value is None or place == ("status",):
        return
    wanted = schema.get("type", "")
    if schema.get(rules.INT_OR_STRING) or wanted not in _CHECKS:
        yield from _inner(schema, value, place)
        return
    fits, remedy = _CHECKS[wanted]
    if not fits(value) and not isinstance(value, Mapping | list):
        yield problems.Problem(place, f"received {value!r}; {remedy}")


def _inner(
    schema: Mapping[str, Any], value: Any, place: problems.Place
) -> Iterator[problems.Problem]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(inner, Mapping):
                yield from mismatches(inner, item, (*place, str(key)))
    elif isinstance(value, Sequence) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            yield from mismatches(schema["items"], item, (*place, number))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    return _is_number(value) and (isinstance(value, int) or value.is_integer())


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "integer": (_is_integer, "write a whole number, without quotes"),
    "number": (_is_number, "write a number, without quotes"),
    "boolean": (lambda value: isinstance(value, bool), "write true or false, without quotes"),
    "string": (lambda value: isinstance(value, str), "put it in quotes"),
}
"""By type: whether a value is of it, and what to write."""
