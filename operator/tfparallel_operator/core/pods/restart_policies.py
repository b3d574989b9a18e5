"""Removes the restarts in place that a template requests of the kubelet, because only the operator
restarts replicas."""

from collections.abc import Iterator, Mapping
from typing import Any

_FIELDS = ("restartPolicy", "restartPolicyRules")
_KINDS = ("initContainers", "containers")
_SIDECAR = "Always"

Place = tuple[str, int, str]
"""The list of a container, its index there, and the field."""


def find(pod_spec: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the fields of containers by which the kubelet would restart them.

    `Always` of an init container stays, because it makes the container a sidecar.
    """
    for kind in _KINDS:
        containers = pod_spec.get(kind)
        for number, container in enumerate(containers if isinstance(containers, list) else ()):
            if not isinstance(container, Mapping):
                continue  # Some manifests are looked at before anybody has checked them.
            is_sidecar = kind == _KINDS[0] and container.get(_FIELDS[0]) == _SIDECAR
            for field in _FIELDS[is_sidecar:]:
                if container.get(field) is not None:
                    yield kind, number, field


def remove(pod_spec: dict[str, Any]) -> None:
    """Remove these fields from the containers of a pod, in place."""
    pod_spec["restartPolicy"] = "Never"
    for kind, number, field in list(find(pod_spec)):
        del pod_spec[kind][number][field]
