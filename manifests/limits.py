"""Tables of docs/reference/limits.md: what one tenant may store or send."""

from collections.abc import Iterator, Mapping
from typing import Any

from testing import pages
from tfparallel_operator.api import gate
from tfparallel_operator.core.life import counts
from tfparallel_operator.core.status import conditions
from tfparallel_operator.engine.reports import connections, endpoint, serving, tokens
from tfparallel_operator.engine.telemetry import logs
from tfparallel_operator.engine.write import recorder
from tfparallel_trainer.contract import limits, progress

Node = Mapping[str, Any]


def jobs() -> str:
    """Return what a job may have."""
    rows = (
        ("the spec as JSON", f"{gate.MAX_SPEC_BYTES:,} bytes"),
        ("the status as JSON", f"{gate.MAX_STATUS_BYTES:,} bytes"),
        ("levels of the spec, and of the status", f"{gate.MAX_DEPTH:,}"),
        ("fields and items of the spec, and of the status", f"{gate.MAX_VALUES:,}"),
        (
            "the name of a field of the spec, and a value called `name`",
            f"{gate.MAX_NAME_LETTERS:,} letters",
        ),
        ("a number", f"-{gate.MAX_NUMBER:,} to {gate.MAX_NUMBER:,}"),
        ("the templates of all replicas together, as JSON", f"{gate.MAX_POD_BYTES:,} bytes"),
    )
    return pages.table(("of a job", "limit"), rows)


def reports() -> str:
    """Return the fields of a report of progress and their limits."""
    schema = progress.Report.model_json_schema()
    rows = [("the report", f"{limits.MAX_BODY_BYTES:,} bytes")]
    rows += [(f"`{path}`", limit) for path, limit in _fields("", schema, schema["$defs"])]
    return pages.table(("field", "limit"), rows)


def connections_table() -> str:
    """Return the limits of who connects to a port of the operator, and of what they ask."""
    oldest = "the oldest of the address with the most is closed"
    rows = [
        ("connections of a port", f"{connections.MAX_CONNECTIONS}; {oldest}"),
        (
            "connections of an address to a port",
            f"{connections.MAX_OF_ADDRESS}; the oldest is closed",
        ),
        ("TLS handshake", f"{serving.HANDSHAKE_SECONDS:.0f} s"),
        ("head of a request, and the pause before the next", f"{serving.HEADER_SECONDS:.0f} s"),
        ("headers of a request", f"{serving.MAX_HEADERS}, of 8 KiB each"),
        ("a connection", f"{serving.CONNECTION_SECONDS:.0f} s"),
        ("arrival of a report", f"{endpoint.BODY_SECONDS:.0f} s"),
        ("a refusal", f"answered after {endpoint.REFUSAL_SECONDS:g} s"),
        ("reports of a job", f"one in {limits.MIN_SECONDS_BETWEEN_REPORTS:.0f} s; others get 429"),
        ("tokens that are checked at once", f"{tokens.MAX_REVIEWS}, one of each address"),
        ("a token that was wrong", f"{tokens.INVALID_SECONDS:.0f} s until it is checked again"),
        ("lines in the log about such requests", f"{logs.BRIEF_LINES} a minute of each port"),
    ]
    return pages.table(("what", "limit"), rows)


def messages() -> str:
    """Return the limits of what the operator says on a job."""
    rows = [
        ("message of a condition, and why replicas wait", conditions.MESSAGE_BYTES),
        ("message of an Event", recorder.MESSAGE_BYTES),
        ("reason of a replica's last exit", counts.REASON_BYTES),
    ]
    return pages.table(("text", "bytes"), [(name, f"{limit:,}") for name, limit in rows])


def _fields(path: str, node: Node, definitions: Node) -> Iterator[tuple[str, str]]:
    """Yield each field that has a limit; of those below `mesh` the reference has them."""
    for field, inner in node.get("properties", {}).items():
        yield from _limited(f"{path}.{field}" if path else field, inner, definitions)


def _limited(path: str, node: Node, definitions: Node) -> Iterator[tuple[str, str]]:
    for subschema in (node, *node.get("anyOf", ())):
        if "$ref" in subschema:
            definition = subschema["$ref"].rpartition("/")[2]
            if definition == "Mesh":
                yield path, "as `spec.mesh`"
            else:
                yield from _fields(path, definitions[definition], definitions)
        elif (limit := _limit(subschema)) is not None:
            yield path, limit
        if "items" in subschema:
            yield from _limited(f"{path}[]", subschema["items"], definitions)


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
