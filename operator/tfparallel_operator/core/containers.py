"""Additions to a pod template, in place; what a user writes wins."""

from typing import Any


def config_map(name: str) -> dict[str, Any]:
    """Return the source of a volume with the files of a ConfigMap."""
    return {"configMap": {"name": name}}


def mount(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    name: str,
    path: str,
    volume: dict[str, Any],
    *,
    read_only: bool = True,
) -> None:
    """Mount a volume, unless the pod has one of this name."""
    volumes = pod_spec.setdefault("volumes", [])
    if any(given.get("name") == name for given in volumes):
        return
    volumes.append({"name": name, **volume})
    mounts = container.setdefault("volumeMounts", [])
    mounts.append({"name": name, "mountPath": path, "readOnly": read_only})


def set_env(container: dict[str, Any], name: str, value: str) -> None:
    """Set a variable unless the template does."""
    variables = container.setdefault("env", [])
    if not any(given.get("name") == name for given in variables):
        variables.append({"name": name, "value": value})
