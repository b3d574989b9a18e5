"""What follows from the types of the resource: its definition, the JSON Schema for editors, and the
reference of its fields."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import manifests
from testing import pages, paths
from tfparallel_operator.api import names, rules, schema, types

HEADER = manifests.header("the types")
DEFINITION_FILES = (
    paths.ROOT / "manifests/base/crd/tfparallel.dev_tfparalleljobs.yaml",
    paths.CHART / "files/crd.yaml",
)
EDITOR_FILE = paths.ROOT / "manifests/tfparalleljob.schema.json"
REFERENCE_FILE = paths.PAGES / "reference/api.md"
MAX_DEFINITION_BYTES = 72_000
"""Of JSON: plain `kubectl apply` keeps it in an annotation that may hold 262,144 bytes."""

Node = Mapping[str, Any]
"""A part of the schema."""


def files() -> dict[Path, str]:
    """Return the definition twice, the schema for editors and the reference."""
    return {
        **dict.fromkeys(DEFINITION_FILES, _definition()),
        EDITOR_FILE: _editor_schema(),
        REFERENCE_FILE: _reference(),
    }


def _definition() -> str:
    """Return the CRD as YAML.

    Raises:
        ValueError: it has grown beyond what plain `kubectl apply` is sure to take.
    """
    # Without the objects that occur twice: few people, and not all tools, read YAML's anchors.
    applied = json.dumps(schema.custom_resource_definition(), separators=(",", ":"))
    if len(applied) > MAX_DEFINITION_BYTES:
        raise ValueError(f"the CRD has {len(applied)} bytes; keep it below {MAX_DEFINITION_BYTES}")
    return f"# {HEADER}\n" + yaml.safe_dump(json.loads(applied), sort_keys=False, width=100)


def _editor_schema() -> str:
    """Return the JSON Schema of what a user writes."""
    spec = types.Spec.model_json_schema(by_alias=True, mode="validation")
    definitions = spec.pop("$defs")
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$comment": HEADER,
        "type": "object",
        "properties": {
            "apiVersion": {"const": names.API_VERSION},
            "kind": {"const": names.KIND},
            "metadata": {"type": "object"},
            "spec": spec,
        },
        "required": ["apiVersion", "kind", "metadata", "spec"],
        "$defs": definitions,
    }
    return json.dumps(document, indent=2) + "\n"


def _reference() -> str:
    """Return the page with every field and rule."""
    job = schema.job_schema()
    problems = (
        (f"`{path}`" if path else "the job", rule["message"])
        for path, node in _nodes("", job)
        for rule in node.get(rules.VALIDATIONS, ())
    )
    return f"""<!-- {HEADER} -->

# Reference of `{names.KIND}`

`apiVersion: {names.API_VERSION}`, `kind: {names.KIND}`; for kubectl also `{names.SHORT_NAME}`. \
Fields in *italics* are set by the operator.

## `spec`: What a job asks for

{_fields("spec", job["properties"]["spec"])}
## `status`: What was observed

{_fields("status", job["properties"]["status"], mark="*")}
## Rules

The API server and `tfparallel validate` refuse a job with:

{pages.table(("where", "what to do"), problems)}"""


def _fields(section: str, section_node: Node, mark: str = "") -> str:
    """Return a table of fields, without traps: those stand among the rules."""
    rows = [
        (
            f"{mark}`{path}`{mark}",
            _type(node) + _limits(node),
            f"`{_value(node['default'])}`" if "default" in node else "",
            node.get("description", ""),
        )
        for path, node in _nodes(section, section_node)
        if path != section and not _is_trap(node)
    ]
    return pages.table(("field", "type", "default", "meaning"), rows)


def _is_trap(node: Node) -> bool:
    """Whether every value of a field is refused."""
    return [rule["rule"] for rule in node.get(rules.VALIDATIONS, ())] == ["false"]


def _nodes(path: str, node: Node) -> Iterator[tuple[str, Node]]:
    """Yield a node and those below it, each with its path."""
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from _nodes(f"{path}.{name}" if path else name, inner)
    for suffix, key in ((".<role>", "additionalProperties"), ("[]", "items")):
        if "properties" in node.get(key, {}):
            _, *below = _nodes(f"{path}{suffix}", node[key])
            yield from below


def _type(node: Node) -> str:
    if "enum" in node:
        return " | ".join(f"`{value}`" if value else '`""`' for value in node["enum"])
    if node.get("type") == "array":
        return f"list of {_type(node['items'])}"
    if node.get(rules.INT_OR_STRING):
        return "integer or string"
    if isinstance(node.get("additionalProperties"), Mapping):
        return f"map to {_type(node['additionalProperties'])}"
    if node.get("format") == "date-time":
        return "time"
    return str(node.get("type", "any"))


def _limits(node: Node) -> str:
    low, high = node.get("minimum"), node.get("maximum")
    if low is not None and high is not None:
        return f", {low} to {high}"
    return f", from {low}" if low is not None else ""


def _value(default: Any) -> str:
    """Return a default as YAML has it."""
    return str(default).lower() if isinstance(default, bool) else str(default)
