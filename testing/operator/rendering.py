"""Rendered manifests as values that can be looked up and compared."""

import copy
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

NAMESPACE = "tfparallel-system"
CHART_LABELS = (
    "app.kubernetes.io/instance",
    "app.kubernetes.io/managed-by",
    "helm.sh/chart",
)
"""Labels that Helm's habits add to what kustomize writes."""

Manifest = dict[str, Any]
Key = tuple[str, str, str]


@dataclass(frozen=True)
class Objects:
    """Manifests in the order in which they were rendered."""

    manifests: tuple[Manifest, ...]

    @classmethod
    def parse(cls, text: str) -> "Objects":
        return cls(tuple(document for document in yaml.safe_load_all(text) if document))

    def __iter__(self) -> Iterator[Manifest]:
        return iter(self.manifests)

    def of_kind(self, *kinds: str) -> list[Manifest]:
        return [manifest for manifest in self if manifest["kind"] in kinds]

    def one(self, kind: str, name: str = "") -> Manifest:
        [match] = [m for m in self.of_kind(kind) if not name or m["metadata"]["name"] == name]
        return match

    def normalised(self) -> dict[Key, Manifest]:
        """What the objects are apart from the habits of the tool that rendered them."""
        return {
            (manifest["kind"], manifest["metadata"].get("namespace", ""), _name(manifest)): _strip(
                manifest
            )
            for manifest in self
        }


Render = Callable[..., Objects]
Command = Callable[..., subprocess.CompletedProcess[str]]


def container(objects: Objects) -> Manifest:
    """The one container of the operator's Deployment."""
    [manifest] = objects.one("Deployment")["spec"]["template"]["spec"]["containers"]
    result: Manifest = manifest
    return result


def environment(objects: Objects) -> dict[str, str]:
    """The container's variables that have a fixed value."""
    return {v["name"]: v["value"] for v in container(objects)["env"] if "value" in v}


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def _strip(manifest: Manifest) -> Manifest:
    result = copy.deepcopy(manifest)
    result["metadata"].pop("annotations", None)
    _strip_labels(result)
    return result


def _strip_labels(node: Any) -> None:
    if isinstance(node, dict):
        for name in ("labels", "selector", "matchLabels"):
            labels = node.get(name)
            if isinstance(labels, dict):
                for label in CHART_LABELS:
                    labels.pop(label, None)
        for inner in node.values():
            _strip_labels(inner)
    elif isinstance(node, list):
        for inner in node:
            _strip_labels(inner)
