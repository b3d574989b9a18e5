"""Checks of types as in the API server, which converts no value, unlike pydantic."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import problems, rules


def without_nulls(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value without the fields of a schema that are null, as the API server stores it."""
    if isinstance(value, Mapping):
        pruned: dict[str, Any] = {}
        for key, item in value.items():
            inner = _field(schema, key)
            if inner is None:
                pruned[key] = item
            elif item is not None:
                pruned[key] = without_nulls(inner, item)
        return pruned
    if isinstance(value, list) and "items" in schema:
        return [without_nulls(schema["items"], item) for item in value]
    return value


def mismatches(
    schema: Mapping[str, Any], value: Any, location: problems.Place = ()
) -> Iterator[problems.Problem]:
    """Yield a problem for each number, boolean and text of another type.

    The job's types check the rest of the schema.
    """
    if value is None or location == ("status",):
        return
    kind = rules.INT_OR_STRING if schema.get(rules.INT_OR_STRING) else schema.get("type", "")
    if kind not in _CHECKS:
        yield from _inner(schema, value, location)
        return
    fits, remedy = _CHECKS[kind]
    if not fits(value) and not isinstance(value, Mapping | list):
        yield problems.Problem(location, f"received {problems.show(value)}; {remedy}")


def _inner(
    schema: Mapping[str, Any], value: Any, location: problems.Place
) -> Iterator[problems.Problem]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if (inner := _field(schema, key)) is not None:
                yield from mismatches(inner, item, (*location, str(key)))
    elif isinstance(value, Sequence) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            yield from mismatches(schema["items"], item, (*location, number))


def _field(schema: Mapping[str, Any], name: str) -> Mapping[str, Any] | None:
    """Return the schema of a field; None: it has none."""
    inner = schema.get("properties", {}).get(name, schema.get("additionalProperties"))
    return inner if isinstance(inner, Mapping) else None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_integer(value: Any) -> bool:
    """A number with a point is one as far as a float counts by one."""
    if isinstance(value, float):
        return value.is_integer() and abs(value) < 2**53
    return _is_number(value) and -(2**63) <= value < 2**63


_CHECKS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "integer": (_is_integer, "write a whole number, without quotes"),
    "number": (_is_number, "write a number, without quotes"),
    "boolean": (lambda value: isinstance(value, bool), "write true or false, without quotes"),
    rules.INT_OR_STRING: (
        lambda value: _is_integer(value) or isinstance(value, str),
        "write a quantity, such as 4Gi or 2",
    ),
    "string": (lambda value: isinstance(value, str), "put it in quotes"),
}
"""By type: whether a value has it, and what to write."""
