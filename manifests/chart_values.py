"""What follows from the comments of the chart's values.yaml: the chart's README, the page of its
values and the descriptions of values.schema.json."""

import itertools
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

import manifests
from images import targets
from testing import pages, paths

VALUES_FILE = paths.CHART / "values.yaml"
SCHEMA_FILE = paths.CHART / "values.schema.json"
README_FILE = paths.CHART / "README.md"
PAGE_FILE = paths.PAGES / "reference/chart-values.md"
_PAGE = """# Values of the chart

To set a value, pass `--set NAME=VALUE` to Helm, or write it to a file for `--values`. The chart
refuses values that are not in this table.
"""


@dataclass(frozen=True)
class Value:
    """A value of the chart with its comment."""

    path: tuple[str, ...]
    default: Any
    description: str


def files() -> dict[Path, str]:
    """Return the schema with descriptions, the README and the page."""
    text = VALUES_FILE.read_text(encoding="utf-8")
    values = list(_values((), yaml.compose(text), yaml.safe_load(text), text.splitlines()))
    document = json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))
    for value in values:
        node = _node(document, value)
        other_fields = {key: part for key, part in node.items() if key != "description"}
        node.clear()
        node.update({"description": value.description, **other_fields})
    _require(document, yaml.safe_load(text))
    head = f"<!-- {manifests.header('values.yaml')} -->\n\n"
    table = _table(document, values)
    return {
        SCHEMA_FILE: json.dumps(document, indent=2, ensure_ascii=False) + "\n",
        README_FILE: f"{head}{_introduction()}\n{table}",
        PAGE_FILE: f"{head}{_PAGE}\n{table}",
    }


def _require(node: Any, values: dict[str, Any]) -> bool:
    """Have the schema demand values whose absence does not mean their default.

    With `--reuse-values`, Helm gives no value that the chart of the last release did not have.
    An absent value means an empty one, which is what most have by default.

    Returns:
        Whether a value below is demanded.
    """
    node.pop("required", None)
    if required := sorted(name for name in values if _is_required(node, name, values[name])):
        node["required"] = required
    return bool(required)


def _is_required(parent: Any, name: str, default: Any) -> bool:
    node = parent["properties"][name]
    if "description" not in node:
        return _require(node, default)
    return bool(default) and not isinstance(default, dict | list)


def _values(
    above: tuple[str, ...], node: Any, document: Any, lines: Sequence[str]
) -> Iterator[Value]:
    """Yield the values below a node, in the order of the file.

    Raises:
        ValueError: a value has no comment.
    """
    for key, inner in node.value:
        path, default = (*above, key.value), document[key.value]
        if description := _comment(lines[: key.start_mark.line]):
            yield Value(path, default, description)
        elif default and isinstance(default, dict):
            yield from _values(path, inner, default, lines)
        else:
            raise ValueError(f"{VALUES_FILE}: {'.'.join(path)} has no comment '# -- …'; add one")


def _comment(lines: Sequence[str]) -> str:
    """Return the comment at the end of these lines, if it begins with "# -- "."""
    stripped = (line.strip() for line in reversed(lines))
    comment = [*itertools.takewhile(lambda line: line.startswith("#"), stripped)]
    text = " ".join(line.removeprefix("# ") for line in reversed(comment))
    return text.removeprefix("-- ") if text.startswith("-- ") else ""


def _introduction() -> str:
    """Return how to install the chart."""
    about = yaml.safe_load((paths.CHART / "Chart.yaml").read_text(encoding="utf-8"))
    name = about["name"]
    oldest = about["kubeVersion"].removeprefix(">=").removesuffix(".0-0")
    return f"""# {name} {targets.version()}

This chart {about["description"][0].lower()}{about["description"][1:]}. It needs Kubernetes
{oldest} or newer.

```console
$ helm install {name} charts/{name} \\
    --namespace tfparallel-system --create-namespace --wait
$ helm test {name} --namespace tfparallel-system
```

`helm test` trains a small job and waits for its end. Add `--logs` to see what the job prints.

If another release or kubectl has already installed the resource definition, let this release take
it over with `--take-ownership`, or leave it as it is with `--set crds.install=false`.

To pull both images from your registry, [build and push
them](../../docs/operate/install.md#the-images), and add
`--set global.imageRegistry=registry.example/team`.
"""


def _table(document: Any, values: Sequence[Value]) -> str:
    rows = [
        (
            f"`{'.'.join(value.path)}`",
            _type(document, _node(document, value)),
            f"`{json.dumps(value.default, ensure_ascii=False)}`",
            value.description,
        )
        for value in values
    ]
    return pages.table(("value", "type", "default", "meaning"), rows)


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
        return "list of " + _type(document, node["items"]).replace(" or ", "s or ") + "s"
    if node["type"] == "integer" and "maximum" in node:
        return f"{node['minimum']} to {node['maximum']}"
    return " or ".join(node["type"]) if isinstance(node["type"], list) else str(node["type"])
