"""Brings code and packages to a replica, by a ConfigMap or an init container. Pure.

The init container runs `tfparallel_trainer.source` with the image, the variables and the volumes of
the container that trains. So it can use the job's credentials for a package index.
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
_COPIED = (
    "image",
    "imagePullPolicy",
    "securityContext",
    "env",
    "envFrom",
    "volumeMounts",
    "terminationMessagePath",
)
_RESOURCES = ("cpu", "memory", "ephemeral-storage")
"""Resources that an init container requests like the container that trains. It needs no devices."""

_ARCHIVE_LIMIT = f"{4 * source_code.MAX_BYTES // 1_000_000}M"
"""Maximum disk space of an unpacked archive, including the blocks of small files and folders."""

_PYTHON_PATH = "PYTHONPATH"


def add(container: containers.ContainerBuilder, source: source_code.Source | None) -> None:
    """Give the container that trains the job's code and packages, before any setting of the user
    applies.

    Without a source, the image contains the code.
    """
    container.set_env(environment.SOURCE_DIR, folder(source))
    if source is not None:
        _add_source(container, source)


def folder(source: source_code.Source | None) -> str:
    """Return the folder of the code in the container. The code runs there, as it does locally."""
    return paths.WORKSPACE_DIR if source is None else paths.SOURCE_DIR


def fill(
    container: containers.ContainerBuilder, mount: Mapping[str, Any], source: source_code.Source
) -> None:
    """Put an archive and packages into a volume that a template mounts itself, in place.

    Args:
        container: the one that trains.
        mount: where it sees the volume, whose own content is left out.
        source: an archive, and what pip installs.
    """
    pod_spec, name = container.pod_spec, mount["name"]
    fetching = _init_container(container, mount["mountPath"])
    others = [volume for volume in pod_spec["volumes"] if volume["name"] != name]
    pod_spec["volumes"] = [{"name": name, "emptyDir": {}}, *others]
    for copied in fetching.spec["volumeMounts"]:
        if copied["name"] == name:
            copied["readOnly"] = False
    _fetch(container, fetching, source)


def _add_source(container: containers.ContainerBuilder, source: source_code.Source) -> None:
    fetching = _init_container(container, paths.SOURCE_DIR)
    if source.archive is not None:
        container.mount(_SOURCE, paths.SOURCE_DIR, {"emptyDir": {"sizeLimit": _ARCHIVE_LIMIT}})
        fetching.mount_volume(_SOURCE, paths.SOURCE_DIR, read_only=False)
    elif source.config_map is not None:
        volume = containers.config_map(source.config_map.name)
        container.mount(_SOURCE, paths.SOURCE_DIR, volume)
        fetching.mount_volume(_SOURCE, paths.SOURCE_DIR, read_only=True)
    if source.archive is not None or source.requirements is not None:
        _fetch(container, fetching, source)


def _init_container(
    container: containers.ContainerBuilder, folder: str
) -> containers.ContainerBuilder:
    """Build the init container that fills a folder, without its mounts of the chunks."""
    spec = {key: copy.deepcopy(container.spec[key]) for key in _COPIED if key in container.spec}
    asked = {
        kind: {name: value for name, value in amounts.items() if name in _RESOURCES}
        for kind, amounts in (container.spec.get("resources") or {}).items()
        if kind in ("requests", "limits")
    }
    if any(asked.values()):
        spec["resources"] = asked
    command = [*_COMMAND, "--source", folder]
    spec = {"name": names.SOURCE_CONTAINER, "command": command, **spec}
    fetching = containers.ContainerBuilder(container.pod_spec, spec)
    fetching.set_env(environment.FAILURE_FILE, fetching.failure_file)
    return fetching


def _fetch(
    container: containers.ContainerBuilder,
    fetching: containers.ContainerBuilder,
    source: source_code.Source,
) -> None:
    """Add the init container to the pod, with the archive and the packages that it fetches."""
    if source.archive is not None:
        _add_chunks(fetching, source.archive)
    if source.requirements is not None:
        _add_packages(container, fetching, source.requirements)
    pod_spec = container.pod_spec
    pod_spec["initContainers"] = [*(pod_spec.get("initContainers") or ()), fetching.spec]


def _add_chunks(fetching: containers.ContainerBuilder, archive: source_code.Archive) -> None:
    """Show the init container the chunks as files in their order."""
    chunks = []
    for number, name in enumerate(archive.config_maps):
        item = {"key": source_code.CHUNK_KEY, "path": source_code.chunk_file(number)}
        chunks.append({"configMap": {"name": name, "items": [item]}})
    fetching.mount(_CHUNKS, paths.CHUNKS_DIR, {"projected": {"sources": chunks}})
    fetching.spec["command"] += ["--chunks", paths.CHUNKS_DIR, "--sha256", archive.sha256]


def _add_packages(
    container: containers.ContainerBuilder, fetching: containers.ContainerBuilder, requirements: str
) -> None:
    """Install packages into a folder that Python searches before all others."""
    folder = paths.PACKAGES_DIR
    container.mount(_PACKAGES, folder, {"emptyDir": {}})
    fetching.mount_volume(_PACKAGES, folder, read_only=False)
    fetching.spec["command"] += ["--requirements", requirements, "--packages", folder]
    container.set_env(_PYTHON_PATH, folder)
    for variable in container.spec["env"]:
        value = variable.get("value") or ""
        if variable["name"] == _PYTHON_PATH and folder not in value.split(":"):
            variable["value"] = ":".join(filter(None, (folder, value)))
