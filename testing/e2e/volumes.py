"""Volumes of the node's own disk behind claims, and a way to read what jobs leave on them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from images import targets
from testing.cluster import handle, workbench
from testing.e2e import kubectl_namespaces

KEEPER = "keeper"
KEEPER_NAMESPACE = "volumes"
"""Its pod is root on a folder of the node, which the namespaces of tests forbid."""

MOUNT = "/volume"
_STORAGE_CLASS = "standard"
_LABEL = "tfparallel.dev/test-volume"


@dataclass(frozen=True)
class Keeper:
    """A pod that sees all volumes of the session."""

    cluster: handle.Cluster

    def start(self) -> None:
        """Start it; it is ready a moment later, see `wait`."""
        self.cluster.create_namespace(KEEPER_NAMESPACE)
        pod = json.dumps(_pod(_host_path(self.cluster)))
        self.kubectl("create", "--filename=-", input=pod)

    def wait(self) -> None:
        """Wait until it is ready."""
        self.kubectl("wait", f"pod/{KEEPER}", "--for=condition=Ready", "--timeout=120s")

    def run(self, *command: str) -> str:
        """What a command prints in it."""
        return self.kubectl("exec", KEEPER, "--", *command)

    def remove(self) -> None:
        """Empty all volumes, and delete them with the keeper."""
        self.run("find", MOUNT, "-mindepth", "1", "-delete")
        kinds = "persistentvolume,storageclass"
        self.cluster.run_kubectl("delete", kinds, f"-l{_LABEL}", "--wait=false")
        self.cluster.run_kubectl("delete", "namespace", KEEPER_NAMESPACE, "--timeout=120s")

    def kubectl(self, *arguments: str, input: str | None = None) -> str:  # noqa: A002
        """What kubectl prints for its namespace."""
        where = f"--namespace={KEEPER_NAMESPACE}"
        return self.cluster.run_kubectl(where, *arguments, input=input)


@dataclass(frozen=True)
class Volume:
    """A volume that a claim in a test's namespace is bound to."""

    keeper: Keeper
    name: str

    def list(self, folder: str) -> list[str]:
        """The paths below a folder of the volume."""
        files = self.keeper.run("find", f"{self._root}/{folder}").split()
        return [path.removeprefix(f"{self._root}/") for path in files]

    def fetch(self, file: str, to: Path) -> Path:
        """Copy a file of the volume to this machine."""
        self.keeper.kubectl("cp", f"{KEEPER}:{self._root}/{file}", str(to))
        return to

    def read_lines(self, file: str) -> Sequence[str]:
        """The complete lines of a file that is being written; none if there is no file."""
        text = self.keeper.run("sh", "-c", f"cat {self._root}/{file} 2>/dev/null || true")
        return text[: text.rfind("\n") + 1].splitlines()

    def touch(self, file: str) -> None:
        """Make an empty file on the volume, in a folder that any user may write to."""
        path = Path(f"{self._root}/{file}")
        script = f"mkdir -p {path.parent} && chmod 777 {path.parent} && touch {path}"
        self.keeper.run("sh", "-c", script)

    @property
    def _root(self) -> str:
        return f"{MOUNT}/{self.name}"


def make(namespace: kubectl_namespaces.KubectlNamespace, claim: str) -> Volume:
    """Make a claim in the namespace, bound to a folder that any user may write to."""
    volume, folder = _folder(namespace, claim)
    namespace.apply(
        _persistent_volume(volume.name, folder, "", "ReadWriteMany"), _claim(volume.name, claim)
    )
    return volume


def provide(namespace: kubectl_namespaces.KubectlNamespace, claim: str) -> Volume:
    """Have a volume for a claim that is yet to come and names no class, by a default class.

    kind's provisioner pulls an image to make a folder; here the folder is made before, and kept for
    this claim: other namespaces have claims that wait. The class offers what kind's does:
    ReadWriteOnce.
    """
    volume, folder = _folder(namespace, claim)
    body = _persistent_volume(volume.name, folder, _STORAGE_CLASS, "ReadWriteOnce")
    body["spec"]["claimRef"] = {"namespace": namespace.name, "name": claim}
    storage_class = workbench.storage_class(_STORAGE_CLASS)
    storage_class["metadata"]["labels"] = {_LABEL: ""}
    namespace.apply(storage_class, body)
    return volume


def _folder(
    namespace: kubectl_namespaces.KubectlNamespace, claim: str
) -> tuple[Volume, kubectl_namespaces.Object]:
    """A folder of the node that any user may write to, and how a volume refers to it."""
    volume = Volume(Keeper(namespace.cluster), f"{namespace.name}-{claim}")
    volume.keeper.run("install", "--directory", "--mode=777", f"{MOUNT}/{volume.name}")
    return volume, _host_path(namespace.cluster, volume.name)


def _host_path(cluster: handle.Cluster, *names: str) -> kubectl_namespaces.Object:
    path = cluster.directory.joinpath("volumes", *names)
    return {"hostPath": {"path": str(path), "type": "DirectoryOrCreate"}}


def _persistent_volume(
    name: str, source: kubectl_namespaces.Object, storage_class: str, mode: str
) -> kubectl_namespaces.Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": name, "labels": {_LABEL: ""}},
        "spec": {
            "capacity": {"storage": "10Gi"},
            "accessModes": [mode],
            "storageClassName": storage_class,
            **source,
        },
    }


def _claim(volume: str, name: str) -> kubectl_namespaces.Object:
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


def _pod(volumes: kubectl_namespaces.Object) -> kubectl_namespaces.Object:
    container = {
        "name": KEEPER,
        "image": targets.TRAINER.reference,
        "command": ["sleep", "infinity"],
        "securityContext": {"runAsUser": 0, "runAsGroup": 0},
        "volumeMounts": [{"name": "volumes", "mountPath": MOUNT}],
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": KEEPER},
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [container],
            "volumes": [{"name": "volumes", **volumes}],
        },
    }
