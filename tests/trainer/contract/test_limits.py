"""What a report may hold: each number, text and list is bounded, whatever fields will be added."""

import copy
from collections.abc import Iterator
from typing import Any

import pydantic
import pytest

from tfparallel_trainer.contract import limits, progress

WHOLE: dict[str, Any] = {
    "step": limits.MAX_COUNT,
    "totalSteps": limits.MAX_COUNT,
    "epoch": limits.MAX_COUNT,
    "percent": 100,
    "examplesPerSecond": "12.5",
    "inputWait": "0.35",
    "metrics": {"loss": "NaN"},
    "eta": "1h2m",
    "placement": {
        "mesh": {"stage": 2, "cuts": ["dense"]},
        "stages": [
            {
                "stage": 0,
                "devices": ["worker-0/GPU:0"],
                "deviceCount": 1,
                "layers": "conv to Größe 層",
                "layerCount": 3,
                "parameterBytes": limits.MAX_COUNT,
                "busySeconds": "0.25",
                "plannedSeconds": "1e-09",
            }
        ],
        "reasons": ["two stages are faster"],
    },
}

Path = tuple[str | int, ...]


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        if isinstance(inner, dict | list):
            yield from _leaves(inner, (*path, key))
        else:
            yield (*path, key), inner


LEAVES = dict(_leaves(WHOLE))
TEXTS = {path: text for path, text in LEAVES.items() if isinstance(text, str)}
NUMBERS = {path: number for path, number in LEAVES.items() if isinstance(number, int)}


def _with(path: Path, value: Any) -> dict[str, Any]:
    report = copy.deepcopy(WHOLE)
    node: Any = report
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return report


def _places(error: pydantic.ValidationError) -> list[tuple[int | str, ...]]:
    return [fault["loc"] for fault in error.errors()]


def test_a_report_within_the_limits_is_taken() -> None:
    report = progress.Report.model_validate(WHOLE)
    body = report.model_dump_json(by_alias=True, exclude_none=True)
    assert progress.Report.model_validate_json(body) == report


@pytest.mark.parametrize("path", NUMBERS, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize("number", [limits.MAX_COUNT + 1, 2**63, 10**30, -(10**30)], ids=str)
def test_a_number_that_nobody_can_carry_is_refused_by_its_name(path: Path, number: int) -> None:
    with pytest.raises(pydantic.ValidationError) as raised:
        progress.Report.model_validate(_with(path, number))
    assert _places(raised.value) == [path]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: ".".join(map(str, path)))
@pytest.mark.parametrize(
    ("control", "shown"),
    [
        ("\x00", r"\x00"),
        ("\x1b", r"\x1b"),
        ("\n", r"\x0a"),
        ("\x9b", r"\x9b"),
        ("\u2028", r"\u2028"),
        ("\u202e", r"\u202e"),
        ("\ud800", r"\ud800"),
    ],
    ids=ascii,
)
def test_a_text_with_a_control_character_is_refused(path: Path, control: str, shown: str) -> None:
    with pytest.raises(pydantic.ValidationError) as raised:
        progress.Report.model_validate(_with(path, f"1{control}"))
    [path_of_problem] = _places(raised.value)
    assert path_of_problem == path[: len(path_of_problem)]
    assert len(path_of_problem) > 1 or len(path) == 1
    if control != "\ud800":  # which is no text for pydantic
        assert f"the control character {shown}: remove it" in str(raised.value)


def test_the_name_of_a_metric_has_no_control_character_either() -> None:
    with pytest.raises(pydantic.ValidationError, match=r"control character \\x1b"):
        progress.Report.model_validate({"step": 1, "metrics": {"\x1b[31mRED": "1"}})


@pytest.mark.parametrize("seconds", ["-1", "inf", "nan", "soon", "1e999", ""])
def test_seconds_are_a_finite_number(seconds: str) -> None:
    path = ("placement", "stages", 0, "busySeconds")
    with pytest.raises(pydantic.ValidationError):
        progress.Report.model_validate(_with(path, seconds))


def test_every_field_has_its_limit() -> None:
    schema = progress.Report.model_json_schema()
    unlimited = [
        path for path, node in _nodes("", schema, schema["$defs"]) if not _is_limited(node)
    ]
    assert unlimited == []


def _nodes(path: str, node: Any, definitions: Any) -> Iterator[tuple[str, Any]]:
    if "$ref" in node:
        node = {**definitions[node["$ref"].rpartition("/")[2]]}
    yield path, node
    for name, inner in node.get("properties", {}).items():
        yield from _nodes(f"{path}.{name}", inner, definitions)
    for key in ("items", "additionalProperties", "propertyNames"):
        if isinstance(node.get(key), dict):
            yield from _nodes(f"{path}.{key}", node[key], definitions)
    for inner in node.get("anyOf", ()):
        yield from _nodes(path, inner, definitions)


def _is_limited(node: Any) -> bool:
    match node.get("type"):
        case "integer":
            return "minimum" in node and node.get("maximum", 2**63) <= limits.MAX_COUNT
        case "string":
            return "maxLength" in node or "enum" in node
        case "array":
            return "maxItems" in node
        case "object":
            return node.get("additionalProperties") is False or "maxProperties" in node
        case "boolean" | "null":
            return True
    return "anyOf" in node or "maxLength" in node  # names of properties have no type
