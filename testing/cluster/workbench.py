"""Equips a full cluster for a person: programs, images, volumes, and the next commands."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from images import targets
from testing import pages
from testing.cluster import console, handle
from testing.image_cache import build

STORAGE_CLASS = "node-disk"
VOLUMES = 20
"""Number of volumes: enough for the claims of a test cluster, because none is used twice."""

_SIZE = "10Gi"

Object: TypeAlias = Mapping[str, Any]


def equip(cluster: handle.Cluster) -> None:
    """Offer volumes, load the images of the product, and put kubectl and helm into one folder."""
    link_programs(cluster)
    offer_volumes(cluster)
    for image in build.ensure(targets.TARGETS.values()):
        console.say(f"loading {image.reference}")
        cluster.load_image(image.archive)


def link_programs(cluster: handle.Cluster) -> None:
    """Make a folder for `PATH` that has kubectl and helm alone."""
    folder = _programs(cluster)
    folder.mkdir(exist_ok=True)
    for program in (cluster.kubectl, cluster.helm):
        link = folder / program.name
        link.unlink(missing_ok=True)
        link.symlink_to(program)


def offer_volumes(cluster: handle.Cluster) -> None:
    """Make the default storage class, and its volumes: folders that any user may write to."""
    folders = [cluster.directory / "volumes" / f"{number:02}" for number in range(VOLUMES)]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
        folder.chmod(0o777)
    items = [storage_class(STORAGE_CLASS), *(_volume(folder) for folder in folders)]
    listing = {"apiVersion": "v1", "kind": "List", "items": items}
    cluster.run_kubectl("apply", "--filename=-", input=json.dumps(listing))


def next_commands(cluster: handle.Cluster) -> Sequence[str]:
    """Return the next commands: variables for the programs and the cluster, then README's."""
    variables = f"export KUBECONFIG={cluster.kubeconfig} PATH={_programs(cluster)}{os.pathsep}$PATH"
    readme = pages.find_commands(pages.README, "helm install")
    return [variables, *(command.line for command in readme)]


def storage_class(name: str) -> dict[str, Any]:
    """Return a default storage class of volumes that are made by hand."""
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": {
            "name": name,
            "annotations": {"storageclass.kubernetes.io/is-default-class": "true"},
        },
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def _volume(folder: Path) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": f"{STORAGE_CLASS}-{folder.name}"},
        "spec": {
            "capacity": {"storage": _SIZE},
            "accessModes": ["ReadWriteOnce", "ReadWriteMany"],
            "storageClassName": STORAGE_CLASS,
            "hostPath": {"path": str(folder), "type": "Directory"},
        },
    }


def _programs(cluster: handle.Cluster) -> Path:
    return cluster.directory / "bin"
