"""How code and packages come to a replica: by a ConfigMap, or by an init container. Pure.

The init container runs `tfparallel_trainer.source` with the image, the variables and the volumes of
the container that trains. So it reaches an index of packages with the job's own credentials.
"""

import copy
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names, paths
from tfparallel_operator.core.pods import containers
from tfparallel_trainer.contract import environment, source_code

_COMMAND = ("python", "-m", "tfparallel_trainer.source")
_SOURCE = "tfparallel-source"
_CHUNKS = "tfparallel-chunks"
_PACKAGES = "tfparallel-packages"
_COPIED = ("image", "imagePullPolicy", "securityContext", "env", "envFrom", "volumeMounts")
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""What an init container asks for like the container that trains; devices it needs none."""

_PYTHON_PATH = "PYTHONPATH"


def add(
    pod_spec: dict[str, Any], container: dict[str, Any], source: source_code.Source | None
) -> None:
    """Give a pod the job's code and packages, in place, before anything else of the operator's.

    Args:
        pod_spec: the pod's.
        container: the one that trains, with all that the user asks for.
        source: where the code comes from; None: from the image.
    """
    folder = paths.WORKSPACE_DIR if source is None else paths.SOURCE_DIR
    if source is not None:
        _add_source(pod_spec, container, source)
    containers.set_env(container, environment.SOURCE_DIR, folder)


def fill(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    mount: Mapping[str, Any],
    source: source_code.Source,
) -> None:
    """Have an archive and packages in a volume that a template mounts itself, in place.

    Args:
        pod_spec: the template's.
        container: the one that trains.
        mount: where it sees the volume, whose own content is left out.
        source: an archive, and what pip installs.
    """
    fetching = _init_container(container, mount["mountPath"])
    name = mount["name"]
    others = [volume for volume in pod_spec["volumes"] if volume["name"] != name]
    pod_spec["volumes"] = [{"name": name, "emptyDir": {}}, *others]
    for copied in fetching["volumeMounts"]:
        if copied["name"] == name:
            copied["readOnly"] = False
    if source.archive is not None:
        _add_chunks(pod_spec, fetching, source.archive)
    if source.requirements is not None:
        _add_packages(pod_spec, container, fetching, source.requirements)
    _begin_with(pod_spec, fetching)


def _add_source(
    pod_spec: dict[str, Any], container: dict[str, Any], source: source_code.Source
) -> None:
    fetching = _init_container(container, paths.SOURCE_DIR)
    if source.archive is not None:
        containers.mount(pod_spec, container, _SOURCE, paths.SOURCE_DIR, {"emptyDir": {}})
        _mount_in(fetching, _SOURCE, paths.SOURCE_DIR, read_only=False)
        _add_chunks(pod_spec, fetching, source.archive)
    elif source.config_map is not None:
        volume = containers.config_map(source.config_map.name)
        containers.mount(pod_spec, container, _SOURCE, paths.SOURCE_DIR, volume)
        _mount_in(fetching, _SOURCE, paths.SOURCE_DIR, read_only=True)
    if source.requirements is not None:
        _add_packages(pod_spec, container, fetching, source.requirements)
    if source.archive is not None or source.requirements is not None:
        _begin_with(pod_spec, fetching)


def _begin_with(pod_spec: dict[str, Any], fetching: dict[str, Any]) -> None:
    pod_spec["initContainers"] = [*(pod_spec.get("initContainers") or ()), fetching]


def _init_container(container: dict[str, Any], folder: str) -> dict[str, Any]:
    """Build the init container that fills a folder, without what it fetches."""
    fetching: dict[str, Any] = {"name": names.SOURCE_CONTAINER, "command": list(_COMMAND)}
    fetching |= {field: copy.deepcopy(container[field]) for field in _COPIED if field in container}
    asked = {
        kind: {name: value for name, value in amounts.items() if name in _RESOURCES}
        for kind, amounts in (container.get("resources") or {}).items()
        if kind in ("requests", "limits")
    }
    if any(asked.values()):
        fetching["resources"] = asked
    _do(fetching, "--source", folder)
    containers.set_env(fetching, environment.FAILURE_FILE, containers.FAILURE_FILE)
    return fetching


def _add_chunks(
    pod_spec: dict[str, Any], fetching: dict[str, Any], archive: source_code.Archive
) -> None:
    """Show the init container the chunks as files in their order."""
    sources = []
    for number, name in enumerate(archive.config_maps):
        item = {"key": source_code.CHUNK_KEY, "path": source_code.chunk_file(number)}
        sources.append({"configMap": {"name": name, "items": [item]}})
    volume = {"projected": {"sources": sources}}
    containers.mount(pod_spec, fetching, _CHUNKS, paths.CHUNKS_DIR, volume)
    _do(fetching, "--chunks", paths.CHUNKS_DIR, "--sha256", archive.sha256)


def _add_packages(
    pod_spec: dict[str, Any],
    container: dict[str, Any],
    fetching: dict[str, Any],
    requirements: str,
) -> None:
    """Have packages installed into a folder that Python looks into before all others."""
    containers.mount(pod_spec, container, _PACKAGES, paths.PACKAGES_DIR, {"emptyDir": {}})
    _mount_in(fetching, _PACKAGES, paths.PACKAGES_DIR, read_only=False)
    _do(fetching, "--requirements", requirements, "--packages", paths.PACKAGES_DIR)
    containers.set_env(container, _PYTHON_PATH, paths.PACKAGES_DIR)
    for variable in container["env"]:
        value = variable.get("value") or ""
        if variable["name"] == _PYTHON_PATH and paths.PACKAGES_DIR not in value.split(":"):
            variable["value"] = ":".join(filter(None, (paths.PACKAGES_DIR, value)))


def _mount_in(container: dict[str, Any], name: str, path: str, *, read_only: bool) -> None:
    mount = {"name": name, "mountPath": path, "readOnly": read_only}
    container.setdefault("volumeMounts", []).append(mount)


def _do(container: dict[str, Any], *arguments: str) -> None:
    container["command"] += arguments
