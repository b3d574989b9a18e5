"""The CustomResourceDefinition, generated from the types."""

import functools
from typing import Any

from tfparallel_operator.api import names, spec_rules, types

_DROPPED = ("title", "default", "const")


@functools.cache
def job_schema() -> dict[str, Any]:
    """Return the structural OpenAPI schema of TFParallelJob, with its rules."""
    document = types.TFParallelJob.model_json_schema(by_alias=True, mode="validation")
    schema = _structural(document, document.pop("$defs"))
    properties = schema["properties"]
    properties["status"] = _without_defaults(properties["status"])
    properties["apiVersion"] = {"type": "string"}
    properties["kind"] = {"type": "string"}
    properties["metadata"] = {"type": "object"}
    schema["required"] = ["spec"]
    return spec_rules.JOB_RULES.extend(schema)


def custom_resource_definition() -> dict[str, Any]:
    """Return the CRD as a manifest."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names.PLURAL}.{names.GROUP}"},
        "spec": {
            "group": names.GROUP,
            "names": {
                "kind": names.KIND,
                "listKind": f"{names.KIND}List",
                "plural": names.PLURAL,
                "singular": names.SINGULAR,
                "shortNames": [names.SHORT_NAME],
                "categories": ["all"],
            },
            "scope": "Namespaced",
            "versions": [
                {
                    "name": names.VERSION,
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": job_schema()},
                    "subresources": {"status": {}, "scale": _SCALE},
                    "additionalPrinterColumns": _PRINTER_COLUMNS,
                }
            ],
        },
    }


def _column(name: str, path: str, kind: str = "string", **more: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "jsonPath": path, **more}


_SCALE = {
    "specReplicasPath": f".spec.tfReplicaSpecs.{types.Role.WORKER.value}.replicas",
    "statusReplicasPath": ".status.workers",
    "labelSelectorPath": ".status.selector",
}
"""Scaling a job scales its workers."""

_PRINTER_COLUMNS = [
    _column("State", ".status.state"),
    _column("Strategy", ".status.strategy"),
    _column("Ready", ".status.ready"),
    _column("Step", ".status.progress.step", "integer"),
    _column("Progress(%)", ".status.progress.percent", "integer", description="Of all steps"),
    _column("Loss", ".status.progress.metrics.loss"),
    _column("ETA", ".status.progress.eta"),
    _column("Restarts", ".status.restartCount", "integer"),
    _column("Age", ".metadata.creationTimestamp", "date"),
    *(
        _column(name, path, kind, priority=1)
        for name, path, kind in (
            ("Attempt", ".status.attempt", "integer"),
            ("Failures", ".status.restarts.failure", "integer"),
            ("Disruptions", ".status.restarts.disruption", "integer"),
            ("Last cause", ".status.lastCause", "string"),
            ("Examples/s", ".status.progress.examplesPerSecond", "string"),
            ("Input wait", ".status.progress.inputWait", "string"),
        )
    ),
]
"""`-o wide` shows the columns with a priority."""


def _without_defaults(node: Any) -> Any:
    """Remove defaults from the status, which contains only observations."""
    if isinstance(node, dict):
        return {key: _without_defaults(inner) for key, inner in node.items() if key != "default"}
    return node


def _structural(node: dict[str, Any], definitions: dict[str, Any]) -> dict[str, Any]:
    """Convert a JSON schema to a structural one: no references, no unions with null."""
    node = dict(node)
    if "$ref" in node:
        target = definitions[node.pop("$ref").rpartition("/")[2]]
        return _structural({**target, **node}, definitions)
    if "anyOf" in node:
        [not_null] = [option for option in node.pop("anyOf") if option.get("type") != "null"]
        return _structural({**not_null, **node}, definitions)
    default = node.get("default")
    for keyword in _DROPPED:
        node.pop(keyword, None)
    if isinstance(default, int | str) and default != "":
        node["default"] = default
    node.pop("propertyNames", None)
    if not isinstance(node.get("additionalProperties"), dict):
        node.pop("additionalProperties", None)
    else:
        node["additionalProperties"] = _structural(node["additionalProperties"], definitions)
    if "items" in node:
        node["items"] = _structural(node["items"], definitions)
    if "properties" in node:
        node["properties"] = {
            name: _structural(inner, definitions) for name, inner in node["properties"].items()
        }
    if node.get("type") == "integer":
        node["format"] = "int64"
    return {
        key: " ".join(value.split()) if key == "description" else value
        for key, value in node.items()
    }
