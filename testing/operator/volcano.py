"""The PodGroups of Volcano, for API servers without its scheduler."""

from typing import Any

from tfparallel_operator.api import types
from tfparallel_operator.engine.observe import owned

POD_GROUPS = owned.POD_GROUPS[types.GangScheduler.VOLCANO]


def definition() -> dict[str, Any]:
    """Return a definition of Volcano's PodGroups that takes any fields."""
    group, version = POD_GROUPS.api_version.split("/")
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": version, "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"podgroups.{group}"},
        "spec": {
            "group": group,
            "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
            "scope": "Namespaced",
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}}],
        },
    }
