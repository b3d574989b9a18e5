"""A container with its pod's spec, and additions to both, in place. Values of the user win."""

import dataclasses
from collections.abc import Mapping
from typing import Any

_FAILURE_FILE = "/dev/termination-log"
"""Kubernetes' default."""


def config_map(name: str) -> dict[str, Any]:
    """Return the source of a volume with the files of a ConfigMap."""
    return {"configMap": {"name": name}}


def claim(name: str) -> dict[str, Any]:
    """Return the source of a volume with the content of a claim."""
    return {"persistentVolumeClaim": {"claimName": name}}


@dataclasses.dataclass(frozen=True, slots=True)
class ContainerBuilder:
    """A container of a pod, as JSON."""

    pod_spec: dict[str, Any]
    spec: dict[str, Any]

    @property
    def failure_file(self) -> str:
        """The file from which the kubelet reads the container's termination message."""
        path: str = self.spec.get("terminationMessagePath") or _FAILURE_FILE
        return path

    def mount(
        self, name: str, path: str, volume: Mapping[str, Any], *, read_only: bool = True
    ) -> None:
        """Add a volume to the pod and mount it, unless the pod has a volume of this name."""
        volumes = self.pod_spec.setdefault("volumes", [])
        if not any(present.get("name") == name for present in volumes):
            volumes.append({"name": name, **volume})
            self.mount_volume(name, path, read_only=read_only)

    def mount_volume(self, name: str, path: str, *, read_only: bool) -> None:
        """Mount a volume that the pod has."""
        mount = {"name": name, "mountPath": path, "readOnly": read_only}
        self.spec.setdefault("volumeMounts", []).append(mount)

    def set_env(self, name: str, value: str) -> None:
        """Set a variable unless the template does."""
        self.add_env({"name": name, "value": value})

    def add_env(self, variable: Mapping[str, Any]) -> None:
        """Add a variable as a pod has it, unless the template sets it."""
        variables = self.spec.setdefault("env", [])
        if not any(present.get("name") == variable["name"] for present in variables):
            variables.append(dict(variable))

    def leaves_empty(self, name: str) -> bool:
        """Whether the template sets a variable to an empty value."""
        return any(
            present.get("name") == name and not (present.get("value") or present.get("valueFrom"))
            for present in self.spec.get("env") or ()
        )
