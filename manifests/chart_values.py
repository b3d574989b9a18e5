"""What follows from the comments of the chart's values.yaml: the chart's README, the page of its
values and the descriptions of values.schema.json."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import version
import yaml

CHART = Path(__file__).resolve().parents[1] / "charts/tfparallel-operator"
VALUES_FILE = CHART / "values.yaml"
SCHEMA_FILE = CHART / "values.schema.json"
README_FILE = CHART / "README.md"
PAGE_FILE = CHART.parents[1] / "docs/reference/chart-values.md"

_KEY = re.compile(r"^( *)([A-Za-z]+):")
_COMMENT = re.compile(r"^ *# (-- )?(.*)$")


@dataclass(frozen=True)
class Value:
    """A value of the chart with its comment."""

    path: tuple[str, ...]
    default: Any
    description: str

    @property
    def name(self) -> str:
        """How `--set` names it."""
        return ".".join(self.path)


def values() -> list[Value]:
    """The values that have a comment, in the order of the file.

    Raises:
        ValueError: a value has no comment.
    """
    text = VALUES_FILE.read_text(encoding="utf-8")
    listed = list(_described(text, yaml.safe_load(text)))
    paths = {value.path for value in listed}
    for path in _leaves((), yaml.safe_load(text)):
        if not any(path[: len(described)] == described for described in paths):
            raise ValueError(f"{VALUES_FILE}: {'.'.join(path)} has no comment '# -- …'; add one")
    return listed


def schema() -> str:
    """The schema of the values, each with its description."""
    document = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    for value in values():
        node = _node(document, value)
        rest = {key: part for key, part in node.items() if key != "description"}
        node.clear()
        node.update({"description": value.description, **rest})
    return json.dumps(document, indent=2, ensure_ascii=False) + "\n"


def readme(header: str) -> str:
    """The chart's README: how to install it, and a table of its values."""
    about = yaml.safe_load((CHART / "Chart.yaml").read_text(encoding="utf-8"))
    namespace = "--namespace tfparallel-system"
    lines = [
        f"<!-- {header} -->",
        "",
        f"# {about['name']} {version.read()}",
        "",
        f"{about['description']}. Needs Kubernetes {about['kubeVersion'].removesuffix('-0')}.",
        "",
        "```console",
        f"$ helm install {about['name']} charts/{about['name']} \\",
        f"    {namespace} --create-namespace --wait",
        f"$ helm test {about['name']} {namespace}",
        "```",
        "",
        "`helm test` trains a small job and waits for its end; add `--logs` to see what it prints.",
        "",
        "To pull both images from your registry, add",
        "`--set global.imageRegistry=registry.example/team`",
        "([building and pushing them](../../docs/operate/install.md#the-images)).",
        "",
        *_table(),
    ]
    return "\n".join(lines) + "\n"


def page(header: str) -> str:
    """The page of the values."""
    lines = [
        f"<!-- {header} -->",
        "",
        "# Values of the chart",
        "",
        "Set a value by `--set NAME=VALUE`, or in a file for `--values`. The chart refuses others.",
        "",
        *_table(),
    ]
    return "\n".join(lines) + "\n"


def _table() -> Iterator[str]:
    yield from ("| value | type | default | meaning |", "|---|---|---|---|")
    document = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    for value in values():
        default = json.dumps(value.default, ensure_ascii=False)
        cells = (_type(document, _node(document, value)), f"`{default}`", value.description)
        yield f"| `{value.name}` | " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _node(document: Any, value: Value) -> Any:
    """Return the schema of a value."""
    for name in value.path:
        document = document["properties"][name]
    return document


def _type(document: Any, node: Any) -> str:
    """Return what a value has to be, in words."""
    if "$ref" in node:
        return _type(document, document["definitions"][node["$ref"].rpartition("/")[2]])
    if "enum" in node:
        return " or ".join(f"`{choice}`" if choice else "empty" for choice in node["enum"])
    if node["type"] == "array":
        return f"list of {node['items']['type']}s"
    if node["type"] == "integer" and "maximum" in node:
        return f"{node['minimum']} to {node['maximum']}"
    return " or ".join(node["type"]) if isinstance(node["type"], list) else str(node["type"])


def _described(text: str, document: Any) -> Iterator[Value]:
    above: list[str] = []
    comment: list[str] = []
    for line in text.splitlines():
        if remark := _COMMENT.match(line):
            comment = [remark[2]] if remark[1] else [*comment, remark[2]]
        elif key := _KEY.match(line):
            above = [*above[: len(key[1]) // 2], key[2]]
            if comment:
                yield Value(tuple(above), _lookup(document, above), " ".join(comment))
            comment = []
        else:
            comment = []


def _lookup(document: Any, path: list[str]) -> Any:
    for name in path:
        document = document[name]
    return document


def _leaves(path: tuple[str, ...], node: Any) -> Iterator[tuple[str, ...]]:
    if isinstance(node, dict) and node:
        for name, inner in node.items():
            yield from _leaves((*path, name), inner)
    else:
        yield path
