"""The generated CustomResourceDefinition keeps what the API server demands."""

from collections.abc import Iterator
from typing import Any
from unittest import mock

import cel
import orjson
import pytest

from testing.operator import objects
from tfparallel_operator.api import load, rules, schema


def nodes(node: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield node
    for inner in node.get("properties", {}).values():
        yield from nodes(inner)
    for keyword in ("items", "additionalProperties"):
        if isinstance(node.get(keyword), dict):
            yield from nodes(node[keyword])


def test_it_is_structural() -> None:
    for node in nodes(schema.job_schema()):
        assert not {"$ref", "$defs", "anyOf", "oneOf", "allOf", "title", "const"} & set(node)
        assert "type" in node or node[rules.INT_OR_STRING]


def test_every_field_of_the_spec_is_described() -> None:
    for node in nodes(schema.job_schema()["properties"]["spec"]):
        for name, inner in node.get("properties", {}).items():
            assert inner.get("description"), name


def test_a_status_has_no_defaults() -> None:
    for node in nodes(schema.job_schema()["properties"]["status"]):
        assert "default" not in node


def test_every_rule_says_what_to_change() -> None:
    entries = [
        rule
        for node in nodes(schema.job_schema())
        for rule in node.get("x-kubernetes-validations", ())
    ]
    assert len(entries) > 15
    for rule in entries:
        assert len(rule["message"]) > 20


def test_a_value_is_converted_once_for_all_its_rules(monkeypatch: pytest.MonkeyPatch) -> None:
    context = mock.Mock(wraps=cel.Context)
    monkeypatch.setattr(cel, "Context", context)
    checks = [rules.Rule(f"self < {limit}", f"at most {limit}") for limit in (3, 5, 7)]
    schema_with_rules = rules.Rules(*checks).extend({"type": "integer"})
    problems = rules.violations(schema_with_rules, 5)
    assert [problem.message for problem in problems] == ["at most 3", "at most 5"]
    context.assert_called_once_with({"self": 5, "oldSelf": mock.ANY})


def test_rules_are_given_no_templates_which_may_be_large(monkeypatch: pytest.MonkeyPatch) -> None:
    context = mock.Mock(wraps=cel.Context)
    monkeypatch.setattr(cel, "Context", context)
    container = {"name": "tensorflow", "args": ["--text"] * 10_000}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    load.parse_job(objects.job() | {"spec": {"tfReplicaSpecs": {"Worker": worker}}})
    converted = [orjson.dumps(call.args[0]["self"]) for call in context.call_args_list]
    assert converted
    assert b'"template":{}' in converted[0]
    assert max(map(len, converted)) < 4_096
