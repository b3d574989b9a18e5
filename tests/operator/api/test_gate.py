"""What the gate lets through, and what comes out of it in place of all else."""

import json
from typing import Any

import hypothesis
import orjson
import pytest
from hypothesis import strategies as st

from testing.operator import objects
from tfparallel_operator.api import gate, load, names, raw_json

METADATA = {
    "annotations": {"name": "other", "note": '],"name":"other"', "spec": "{"},
    "generation": 3,
    "managedFields": [{"fieldsV1": {"f:spec": {'k:{"name":"x"}': {}}}, "manager": "kubectl"}],
    "name": "digits",
    "namespace": "team",
    "resourceVersion": "12",
    "uid": "u",
}
STATUS = {
    "conditions": [{"message": 'a "}]', "status": "True", "type": "Running"}],
    "state": "Running",
}
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def _text(value: str, status: dict[str, Any] | None = STATUS) -> bytes:
    """Return a job whose spec has a value, as the API server writes it."""
    metadata = json.dumps(METADATA, separators=(",", ":"))
    end = "" if status is None else f',"status":{json.dumps(status, separators=(",", ":"))}'
    head = f'{{"apiVersion":"{names.API_VERSION}","kind":"{names.KIND}","metadata":{metadata}'
    return f'{head},"spec":{{"x":{value}}}{end}}}\n'.encode()


def _nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (_nested(gate.MAX_DEPTH), "nests deeper than 64 levels"),
        (_nested(300), "nests deeper than 64 levels"),
        (_nested(1_100), "spec: it nests deeper than 64 levels"),
        (_nested(9_000), "spec: it nests deeper than 64 levels"),
        ('{"status":' * 1_100 + "{}" + "}" * 1_100, "spec: it nests deeper than 64 levels"),
        (
            f'"{"a" * gate.MAX_SPEC_BYTES}"',
            "spec: it has 262152 bytes as JSON",
        ),
        (f"[{'1,' * gate.MAX_VALUES}1]", "more than 20000 fields and items"),
        (str(2**63 + 1), "spec.x: 9223372036854775809 is beyond 9.22337e+18"),
        ("1" + "0" * 300, "is beyond"),
        ("-1" + "0" * 30, "spec.x: -1e+30 is beyond"),
        (r'"a\u0000"', r"spec.x: the text has the control character \x00"),
        (r'{"name":"a\u009b"}', r"spec.x: a name has the control character \x9b"),
        (r'{"a\u0007":1}', r"spec.x: a name has the control character \x07"),
        (f'{{"{"a" * 1025}":1}}', "spec.x: a name has 1025 letters, and may have 1024"),
    ],
)
@pytest.mark.parametrize("status", [STATUS, None])
def test_a_job_beyond_a_limit_comes_without_its_spec(
    value: str, problem: str, status: dict[str, Any] | None
) -> None:
    text = _text(value, status)
    body = gate.read_job(text)
    assert problem in body[gate.PROBLEM]
    assert len(body[gate.PROBLEM]) < 400
    assert "spec" not in body
    assert body.get("status") == status
    kept = {key: METADATA[key] for key in METADATA if key != "managedFields"}
    assert kept.items() <= body["metadata"].items()
    event = b'{"type":"MODIFIED","object":' + text.strip() + b"}\n"
    assert gate.read_event(event) == ("MODIFIED", body)
    listed = b'{"apiVersion":"v","items":[' + text.strip() + b'],"kind":"L","metadata":{}}\n'
    assert gate.read_list_of_one(listed) == {"kind": "L", "metadata": {}, "items": [body]}


@pytest.mark.parametrize(
    "value",
    [
        _nested(gate.MAX_DEPTH - 1),
        str(2**63 - 1),
        r'"\u001b[31mlines\n\tand colors"',
        f'"{"a" * (gate.MAX_SPEC_BYTES - 8)}"',
        f"[{'1,' * (gate.MAX_VALUES - 3)}1]",
        f'{{"{"a" * gate.MAX_NAME_LETTERS}":1.5}}',
    ],
)
def test_a_job_within_the_limits_is_let_through(value: str) -> None:
    body = gate.read_job(_text(value))
    assert body["spec"] == {"x": json.loads(value)}
    assert (body["status"], body["metadata"]["uid"]) == (STATUS, "u")


def _status(levels: int) -> dict[str, Any]:
    """Return a status of so many levels."""
    status: dict[str, Any] = {}
    for _ in range(levels - 1):
        status = {"a": status}
    return status


@pytest.mark.parametrize("spec", ["1", f'"{"a" * (gate.MAX_SPEC_BYTES - 8)}"'], ids=["", "large"])
@pytest.mark.parametrize(
    ("status", "problem"),
    [
        ({"x": "a" * gate.MAX_STATUS_BYTES}, "status: it has 131080 bytes as JSON"),
        (
            {"replicas": {"A": {}, "status": {}}, "x": "a" * gate.MAX_STATUS_BYTES},
            "bytes as JSON, and the operator reads at most 131072",
        ),
        (_status(gate.MAX_DEPTH + 1), "nests deeper than 64 levels"),
        (_status(400), "nests deeper than 64 levels"),
        ({"x": [1] * gate.MAX_VALUES}, "status.x: the status has more than 20000 fields"),
        ({"x": 2**63 + 1}, "status.x: 9223372036854775809 is beyond"),
    ],
)
def test_a_job_comes_without_a_status_beyond_a_limit(
    spec: str, status: dict[str, Any], problem: str
) -> None:
    body = gate.read_job(_text(spec, status))
    assert problem in body[gate.STATUS_PROBLEM]
    assert "status" not in body and gate.PROBLEM not in body
    assert body["spec"] == {"x": json.loads(spec)}
    for read in (load.read_job, load.read_status):
        with pytest.raises(load.StatusError, match="status"):
            read(body)


@pytest.mark.parametrize(
    "status",
    [
        _status(gate.MAX_DEPTH),
        {"conditions": [{"message": "a\x08\x00b", "type": "Running"}]},
        {"replicaAttempts": {f"worker-{number}": 99 for number in range(5_000)}},
        {"replicas": {"A": {}, "status": {}}},
    ],
)
@pytest.mark.parametrize("spec", ["1", f'"{"a" * (gate.MAX_SPEC_BYTES - 8)}"'], ids=["", "large"])
def test_a_status_within_the_limits_is_let_through(spec: str, status: dict[str, Any]) -> None:
    assert gate.read_job(_text(spec, status))["status"] == status


def test_what_a_pod_has_reported_beyond_a_limit_is_left_out_alone() -> None:
    reported = {"metrics": {"loss": "9" * gate.MAX_STATUS_BYTES}}
    body = gate.read_job(_text("1", {**STATUS, "progress": reported, "placement": {}}))
    assert body["status"] == STATUS
    assert gate.STATUS_PROBLEM not in body


@hypothesis.given(spec=st.dictionaries(st.text(), JSON), status=st.dictionaries(st.text(), JSON))
def test_the_outline_of_any_job_has_its_parts(spec: dict[str, Any], status: dict[str, Any]) -> None:
    job = {**dict.fromkeys(("apiVersion", "kind"), "x"), "metadata": METADATA, "spec": spec}
    outline = raw_json.read_outline(orjson.dumps({**job, "status": status}))
    metadata = orjson.loads(outline.metadata)
    assert metadata == {key: METADATA[key] for key in METADATA if key != "managedFields"}
    assert (orjson.loads(outline.spec), orjson.loads(outline.status)) == (spec, status)


def test_replicas_count_with_the_size_of_their_template() -> None:
    job = objects.job(workers=5_000)
    assert gate.admit(job) is job
    worker = job["spec"]["tfReplicaSpecs"]["Worker"]
    worker["template"]["spec"]["containers"][0]["args"] = ["a" * 10_000]
    assert "together have" in gate.admit(job)[gate.PROBLEM]
    worker["replicas"] = 500
    assert gate.admit(job) is job
    worker["maxReplicas"] = 5_000
    assert "and may have 33554432" in gate.admit(job)[gate.PROBLEM]


@pytest.mark.parametrize(
    "text", [b"", b"<html>", b"{}", b'{"metadata":{"managedFields":[]}}', b'{"metadata":']
)
def test_what_is_no_job_is_an_error(text: bytes) -> None:
    long = text + b" " * gate.MAX_SPEC_BYTES
    for read in (gate.read_job, gate.read_event, gate.read_list_of_one):
        with pytest.raises(raw_json.BrokenError):
            read(long)
