"""Rules between fields, written once in CEL.

The API server evaluates them at `kubectl apply`. Without one, `violations` evaluates the same text.
"""

import dataclasses
import functools
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pydantic
from pydantic import json_schema
from pydantic_core import core_schema

from tfparallel_operator.api import problems

if TYPE_CHECKING:  # The package imports a terminal interface: a third of the command's start.
    import cel

VALIDATIONS = "x-kubernetes-validations"
PRESERVE_UNKNOWN_FIELDS = "x-kubernetes-preserve-unknown-fields"
INT_OR_STRING = "x-kubernetes-int-or-string"
_MESSAGE_EXPRESSION = "messageExpression"
_OPTIONAL_OLD_SELF = "optionalOldSelf"


@dataclasses.dataclass(frozen=True, slots=True)
class Rule:
    """A CEL expression over `self` that must hold, and what to do when it does not."""

    expression: str
    message: str
    message_expression: str = ""
    """A CEL expression for a message that names what was received, by `format`, whose cost the API
    server can bound, unlike that of +. `message` stands where it cannot be evaluated."""
    spares: str = ""
    """Stored objects that the rule spares: an expression over `self` and the optional `oldSelf`.

    Rules at the root are evaluated at each write, of the status too. A stored object that breaks
    one could never get a status."""

    @property
    def text(self) -> str:
        """The expression as the API server gets it."""
        if not self.spares:
            return self.expression
        return f"oldSelf.hasValue() && ({self.spares}) || ({self.expression})"


def never(message: str) -> Rule:
    """Refuse a field, whatever its value."""
    return Rule("false", message)


class Rules:
    """Annotation of a field or type: its rules, and whether its unknown fields are kept."""

    def __init__(self, *rules: Rule, preserve_unknown_fields: bool = False) -> None:
        self._rules = rules
        self._preserve_unknown_fields = preserve_unknown_fields

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: pydantic.GetJsonSchemaHandler
    ) -> json_schema.JsonSchemaValue:
        """Add the rules to the field's JSON schema."""
        return self.extend(handler(schema))

    def extend(self, schema: dict[str, Any]) -> dict[str, Any]:
        """Return the schema with the rules as a further keyword."""
        extended = dict(schema)
        if self._rules:
            extended[VALIDATIONS] = [
                {"rule": rule.text, "message": rule.message}
                | ({_OPTIONAL_OLD_SELF: True} if rule.spares else {})
                | (
                    {_MESSAGE_EXPRESSION: rule.message_expression}
                    if rule.message_expression
                    else {}
                )
                for rule in self._rules
            ]
        if self._preserve_unknown_fields:
            extended[PRESERVE_UNKNOWN_FIELDS] = True
        return extended


class IntOrString:
    """Annotation of a number or a text, such as a quantity."""

    def __get_pydantic_json_schema__(
        self, _: core_schema.CoreSchema, __: pydantic.GetJsonSchemaHandler
    ) -> json_schema.JsonSchemaValue:
        """Return the API server's keyword."""
        return {INT_OR_STRING: True}


def violations(
    schema: Mapping[str, Any], value: Any, location: problems.Place = ()
) -> Iterator[problems.Problem]:
    """Evaluate the rules of a structural schema on a value (JSON types, with defaults).

    Rules that compare two versions of an object are skipped. The API server evaluates them.
    """
    yield from _violations(schema, _without_kept(schema, value), location)


def _without_kept(schema: Mapping[str, Any], value: Any) -> Any:
    """Return a value without fields of unknown type, which rules cannot see.

    These are templates. They may be large, and converting them for the rules takes long.
    """
    if isinstance(value, Mapping):
        fields, others = schema.get("properties", {}), schema.get("additionalProperties")
        inner = {key: fields.get(key, others) for key in value}
        return {
            key: _without_kept(inner[key] or {}, item)
            for key, item in value.items()
            if inner[key] or not schema.get(PRESERVE_UNKNOWN_FIELDS)
        }
    if isinstance(value, list):
        return [_without_kept(schema.get("items", {}), item) for item in value]
    return value


def _violations(
    schema: Mapping[str, Any], value: Any, location: problems.Place
) -> Iterator[problems.Problem]:
    if VALIDATIONS in schema:
        context = _context(value)
        for entry in schema[VALIDATIONS]:
            rule = Rule(entry["rule"], entry["message"], entry.get(_MESSAGE_EXPRESSION, ""))
            if _judges_one_version(entry) and _program(entry["rule"]).execute(context) is not True:
                yield problems.Problem(location, _message(rule, context))
    if isinstance(value, Mapping):
        for key, item in value.items():
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
            if isinstance(inner, Mapping):
                yield from _violations(inner, item, (*location, key))
    if isinstance(value, Sequence) and isinstance(schema.get("items"), Mapping):
        for number, item in enumerate(value):
            yield from _violations(schema["items"], item, (*location, number))


def compile_all(schema: Mapping[str, Any]) -> None:
    """Compile all rules of a schema, so that the first object need not wait."""
    for entry in schema.get(VALIDATIONS, ()):
        for expression in (entry["rule"], entry.get(_MESSAGE_EXPRESSION)):
            if expression is not None and _judges_one_version(entry):
                _program(expression)
    for inner in (
        *schema.get("properties", {}).values(),
        schema.get("additionalProperties"),
        schema.get("items"),
    ):
        if isinstance(inner, Mapping):
            compile_all(inner)


def _judges_one_version(entry: Mapping[str, Any]) -> bool:
    """Whether a rule applies to an object without its previous version."""
    return "oldSelf" not in entry["rule"] or bool(entry.get(_OPTIONAL_OLD_SELF))


def _message(rule: Rule, context: "cel.Context") -> str:
    if not rule.message_expression:
        return rule.message
    return str(_program(rule.message_expression).execute(context))


def _context(value: Any) -> "cel.Context":
    """Convert a value once for all its rules, because that takes longer than a rule."""
    import cel

    context = cel.Context({"self": value, "oldSelf": cel.OptionalValue.none()})
    # Kubernetes has it, this evaluator does not; %d and %s mean the same in Python.
    context.add_function("format", lambda text, values: text % tuple(values))
    return context


@functools.cache
def _program(expression: str) -> "cel.Program":
    """Compile an expression once, because that takes longer than its evaluation."""
    import cel

    return cel.compile(expression)
