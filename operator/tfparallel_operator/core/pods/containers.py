"""Additions to a pod template, in place; what a user writes wins."""

from collections.abc import Mapping
from typing import Any

FAILURE_FILE = "/dev/termination-log"
"""Where the kubelet looks for what a container says of its end, unless the template says where."""


def config_map(name: str) -> dict[str, Any]:
    """Return the source of a volume with the files of a ConfigMap."""
    return {"configMap": {"name": name}}


def claim(name: str) -> dict[str, Any]:
    """Return the source of a volume with the content of a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}


def mount(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    name: str,
    path: str,
    volume: Mapping[str, Any],
    *,
    read_only: bool = True,
) -> None:
    """Mount a volume, unless the pod has one of this name."""
    volumes = pod_spec.setdefault("volumes", [])
    if any(present.get("name") == name for present in volumes):
        return
    volumes.append({"name": name, **volume})
    mounts = container.setdefault("volumeMounts", [])
    mounts.append({"name": name, "mountPath": path, "readOnly": read_only})


def set_env(container: dict[str, Any], name: str, value: str) -> None:
    """Set a variable unless the template does."""
    add_env(container, {"name": name, "value": value})


def add_env(container: dict[str, Any], variable: Mapping[str, Any]) -> None:
    """Add a variable as a pod has it, unless the template sets it."""
    variables = container.setdefault("env", [])
    if not any(present.get("name") == variable["name"] for present in variables):
        variables.append(dict(variable))
