"""Volumes of a pod as folders of this machine."""

import dataclasses
import pathlib
from collections.abc import Mapping
from typing import Any

from tfparallel.backends.local import folders
from tfparallel.job_source import key_maps
from tfparallel_operator.api import load


@dataclasses.dataclass(frozen=True, slots=True)
class Volumes:
    """Returns a folder for each kind of volume that can exist without a cluster."""

    layout: folders.Folders
    job_folder: pathlib.Path
    """Folder that replaces every ConfigMap that the job's file does not contain."""
    token: str
    """Content of a projected service account token."""
    secrets: key_maps.KeyMaps = dataclasses.field(default_factory=dict)
    """The Secrets in the job's file."""

    def folder(
        self, volume: Mapping[str, Any], pod: str, config_maps: key_maps.KeyMaps
    ) -> folders.VolumeFolder:
        """Return the folder of a volume.

        Raises:
            SpecError: such a volume needs a cluster.
        """
        match volume:
            case {"name": str(name), "configMap": {"name": str(source), "items": list(items)}}:
                kind, path = key_maps.ObjectKind.CONFIG_MAP, self.layout.projected(pod, name)
                return folders.VolumeFolder(path, _chosen(kind, source, items, config_maps))
            case {"name": str(name), "secret": {"secretName": str(source), "items": list(items)}}:
                kind, path = key_maps.ObjectKind.SECRET, self.layout.projected(pod, name)
                return folders.VolumeFolder(path, _chosen(kind, source, items, self.secrets))
            case {"configMap": {"name": str(source)}}:
                if source not in config_maps:
                    return folders.VolumeFolder(self.job_folder)
                return folders.VolumeFolder(self.layout.config_map(source), config_maps[source])
            case {"secret": {"secretName": str(source)}}:
                if source not in self.secrets:
                    raise load.SpecError(
                        f"Secret {source!r} is not in the job's file; add it there after a line"
                        " with ---, or remove the volume for this run"
                    )
                return folders.VolumeFolder(self.layout.secret(source), self.secrets[source])
            case {"persistentVolumeClaim": {"claimName": str(claim)}}:
                return folders.VolumeFolder(self.layout.claim(claim))
            case {"name": str(name), "emptyDir": _}:
                return folders.VolumeFolder(self.layout.volume(pod, name), fresh=True)
            case {
                "name": str(name),
                "projected": {"sources": [{"serviceAccountToken": {"path": str(path)}}]},
            }:
                return folders.VolumeFolder(self.layout.projected(pod, name), {path: self.token})
        kinds = ", ".join(key for key in volume if key != "name") or "nothing"
        raise load.SpecError(
            f"volume {volume.get('name')!r} is a {kinds}, which needs a cluster; without one,"
            " use a configMap, a persistentVolumeClaim or an emptyDir"
        )


def _chosen(
    kind: key_maps.ObjectKind, source: str, items: list[Any], objects: key_maps.KeyMaps
) -> key_maps.KeyMap:
    """Return some keys of an object as files, with the names that the volume gives them."""
    if source not in objects:
        raise load.SpecError(
            f"{kind} {source!r} is mounted with items but is not in the job's file; add it there,"
            " after a line with ---"
        )
    chosen: dict[str, str | bytes] = {}
    for item in items:
        match item:
            case {"key": str(key), "path": str(below)} if key in objects[source]:
                chosen[below] = objects[source][key]
            case _:
                raise load.SpecError(
                    f"{kind} {source!r}: received the item {item!r}; give one of its keys, and a"
                    " path for it"
                )
    return chosen
