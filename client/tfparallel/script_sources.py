"""Scripts of jobs without `spec.trainer`: where their templates want the files of the job's folder.

A template asks for them by a ConfigMap that its container mounts as the working directory, and that
the job's file does not bring. `tfparallel run` takes the folder for such a ConfigMap too. In a
cluster, an init container unpacks the files there: a ConfigMap holds no folders and 1 MiB.
"""

import dataclasses
import pathlib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.core.pods import containers, sources
from tfparallel_trainer.contract import source_code


@dataclasses.dataclass(frozen=True, slots=True)
class Script:
    """A template that asks for the files."""

    pod_spec: dict[str, Any]
    container: dict[str, Any]
    mount: Mapping[str, Any]
    field: str
    """Of the job: the container's command."""

    @property
    def program(self) -> str | None:
        """The script, below the working directory; None: the command names none."""
        command_line = [*(self.container.get("command") or ()), *(self.container.get("args") or ())]
        scripts = (str(word) for word in command_line if str(word).endswith(".py"))
        first = next(scripts, None)
        if first is None or pathlib.PurePosixPath(first).is_absolute():
            return None
        return pathlib.PurePosixPath(first).as_posix()

    def fill(self, source: Mapping[str, Any]) -> None:
        """Have the files in place of the ConfigMap.

        Args:
            source: as `spec.trainer.source` names them.
        """
        parsed = source_code.Source.model_validate(source)
        container = containers.ContainerBuilder(self.pod_spec, self.container)
        sources.fill(container, self.mount, parsed)


def find(job: Mapping[str, Any], brought: Collection[str]) -> list[Script]:
    """Return the templates of a job that ask for the files.

    Args:
        job: its manifest; `Script.fill` changes it.
        brought: the ConfigMaps of the job's file.
    """
    roles = job["spec"]["tfReplicaSpecs"]
    return [script for role in roles for script in _find(job, role, brought)]


def _find(job: Mapping[str, Any], role: str, brought: Collection[str]) -> Iterator[Script]:
    template = job["spec"]["tfReplicaSpecs"][role].get("template") or {}
    pod_spec = template.get("spec") or {}
    names_of_files = {
        volume["name"]
        for volume in pod_spec.get("volumes") or ()
        if _is_missing(volume.get("configMap") or {}, brought)
    }
    for number, container in enumerate(pod_spec.get("containers") or ()):
        if container.get("name") != names.CONTAINER:
            continue
        field = f"spec.tfReplicaSpecs.{role}.template.spec.containers[{number}].command"
        for mount in container.get("volumeMounts") or ():
            if mount["name"] in names_of_files and _is_working_directory(mount, container):
                yield Script(pod_spec, container, mount, field)


def _is_missing(config_map: Mapping[str, Any], brought: Collection[str]) -> bool:
    """Whether a volume has all files of a ConfigMap that does not come with the job."""
    return "name" in config_map and "items" not in config_map and config_map["name"] not in brought


def _is_working_directory(mount: Mapping[str, Any], container: Mapping[str, Any]) -> bool:
    folder = pathlib.PurePosixPath(mount["mountPath"])
    is_whole = not mount.get("subPath") and not mount.get("subPathExpr")
    return is_whole and folder == pathlib.PurePosixPath(container.get("workingDir") or "/")
