"""A volume of the node's own disk behind a claim, and a way to read what jobs leave on it."""

import json
from dataclasses import dataclass
from pathlib import Path

from testing.cluster import handle
from testing.e2e import namespaces
from testing.images import inputs

KEEPER_NAMESPACE = "volumes"
"""Its pods are root on a folder of the node, which the namespaces of tests forbid."""

MOUNT = "/volume"


@dataclass(frozen=True)
class Volume:
    """A volume that the claim of the same name in a test's namespace is bound to."""

    cluster: handle.Cluster
    keeper: str

    def list(self, folder: str) -> str:
        """The names below a folder of the volume."""
        return self._in_keeper("exec", self.keeper, "--", "find", f"{MOUNT}/{folder}")

    def fetch(self, file: str, to: Path) -> Path:
        """Copy a file of the volume to this machine."""
        self._in_keeper("cp", f"{self.keeper}:{MOUNT}/{file}", str(to))
        return to

    def touch(self, file: str) -> None:
        """Make an empty file on the volume."""
        self._in_keeper("exec", self.keeper, "--", "touch", f"{MOUNT}/{file}")

    def remove(self) -> None:
        """Empty the volume and end its keeper."""
        command = ("find", MOUNT, "-mindepth", "1", "-delete")
        self._in_keeper("exec", self.keeper, "--", *command)
        self._in_keeper("delete", "pod", self.keeper)
        self.cluster.run_kubectl("delete", "persistentvolume", self.keeper, "--wait=false")

    def _in_keeper(self, *arguments: str) -> str:
        return self.cluster.run_kubectl(f"--namespace={KEEPER_NAMESPACE}", *arguments)


def make(namespace: namespaces.Namespace, claim: str) -> Volume:
    """Make a claim in the namespace, bound to a folder that any user may write to."""
    name = f"{namespace.name}-{claim}"
    source = {
        "hostPath": {
            "path": str(namespace.cluster.directory / "volumes" / name),
            "type": "DirectoryOrCreate",
        }
    }
    namespace.apply(_persistent_volume(name, source), _claim(name, claim))
    keeper = json.dumps(_keeper(name, source))
    where = f"--namespace={KEEPER_NAMESPACE}"
    namespace.cluster.run_kubectl("create", where, "--filename=-", input=keeper)
    ready = ("--for=condition=Ready", "--timeout=120s")
    namespace.cluster.run_kubectl("wait", where, f"pod/{name}", *ready)
    return Volume(namespace.cluster, name)


def _persistent_volume(name: str, source: namespaces.Object) -> namespaces.Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            **source,
        },
    }


def _claim(volume: str, name: str) -> namespaces.Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": volume,
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _keeper(name: str, source: namespaces.Object) -> namespaces.Object:
    ready = {"exec": {"command": ["test", "-w", f"{MOUNT}/.ready"]}, "periodSeconds": 1}
    script = f"chmod 777 {MOUNT} && touch {MOUNT}/.ready && exec sleep infinity"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "keeper",
                    "image": inputs.TRAINER.reference,
                    "command": ["sh", "-c", script],
                    "securityContext": {"runAsUser": 0, "runAsGroup": 0},
                    "readinessProbe": ready,
                    "volumeMounts": [{"name": "volume", "mountPath": MOUNT}],
                }
            ],
            "volumes": [{"name": "volume", **source}],
        },
    }
