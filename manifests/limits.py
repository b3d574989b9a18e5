"""Tables of docs/reference/limits.md: what one tenant may store or send."""

from collections.abc import Iterator, Mapping
from typing import Any

from testing import pages
from tfparallel_trainer.contract import limits, progress

Node = Mapping[str, Any]


def reports() -> str:
    """Return the fields of a report of progress and their limits."""
    schema = progress.Report.model_json_schema()
    rows = [("the report", f"{limits.MAX_BODY_BYTES:,} bytes")]
    rows += [(f"`{path}`", limit) for path, limit in _fields("", schema, schema["$defs"])]
    return pages.table(("field", "limit"), rows)


def _fields(path: str, node: Node, definitions: Node) -> Iterator[tuple[str, str]]:
    """Yield each field that has a limit; of those below `mesh` the reference has them."""
    for field, inner in node.get("properties", {}).items():
        yield from _limited(f"{path}.{field}" if path else field, inner, definitions)


def _limited(path: str, node: Node, definitions: Node) -> Iterator[tuple[str, str]]:
    for each in (node, *node.get("anyOf", ())):
        if "$ref" in each:
            definition = each["$ref"].rpartition("/")[2]
            if definition == "Mesh":
                yield path, "as `spec.mesh`"
            else:
                yield from _fields(path, definitions[definition], definitions)
        elif (limit := _limit(each)) is not None:
            yield path, limit
        if "items" in each:
            yield from _limited(f"{path}[]", each["items"], definitions)


def _limit(node: Node) -> str | None:
    """Return the words for the limit of one value."""
    match node.get("type"):
        case "integer":
            return f"{node['minimum']:,} to {node['maximum']:,}"
        case "string":
            return f"{node['maxLength']} letters"
        case "array":
            return f"{node['maxItems']} entries"
        case "object":
            names, values = node["propertyNames"], node["additionalProperties"]
            return (
                f"{node['maxProperties']} entries; names of {names['maxLength']} letters, values"
                f" of {values['maxLength']}"
            )
    return None
