"""Turns a pod's manifest into the command that runs on this machine."""

import dataclasses
import os
import pathlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence

from tfparallel.backends.local import (
    container_variables,
    folders,
    name_substitution,
    ports,
    process,
    volumes,
)
from tfparallel.job_source import key_maps
from tfparallel_operator.api import accelerators, load, names, paths, pods
from tfparallel_operator.core import decision
from tfparallel_operator.core.pods import expansion, progress_report, trainer_container
from tfparallel_trainer.contract import environment

GRACE_SECONDS = 10
"""How long a process may take to end if its template says nothing.

It is shorter than a pod's 30 s, because somebody is waiting.
"""

_THREAD_LIMITS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
"""Variables that limit threads.

Otherwise, each process starts as many threads as the machine has cores.
"""

_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # lines appear when they are written
    "TF_CPP_MIN_LOG_LEVEL": "1",  # without a dozen lines of information from every process
}

_REPORT_SECONDS = "0.1"
"""Minimum seconds between two reports.

Locally, the endpoint has no other clients, and the bar should not lag behind the log.
"""

_NO_PROXY = ("no_proxy", "NO_PROXY")
"""Hosts without a proxy. Otherwise, gRPC and urllib would connect to loopback through a proxy."""

_PYTHONS = ("python", "python3")
_FORKS = sys.platform == "linux"

_OF_CLUSTERS = frozenset({environment.JOB_NAMESPACE, environment.AGENT_URL})
"""Variables of pods: this run has no namespace, and agents here ask at an address of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Translation:
    """The process of a pod, and the folders that must exist before it starts."""

    launch: process.Launch
    needed: Sequence[folders.VolumeFolder]
    output: pathlib.Path | None
    """The folder in which the shipped trainer writes; None: the command names no such folder."""
    has_agent: bool = False
    """Whether the process is an agent, which may outlive its pod and run the next one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launcher:
    """Translates the pods of one job. It reads no files and starts nothing."""

    disk: volumes.Volumes
    addresses: Mapping[str, name_substitution.Substitution]
    """By pod name: the address on loopback for each address in a cluster."""
    replicas: int
    """How many processes share the machine."""
    inherited: Mapping[str, str]
    """The runner's own environment."""
    wrappers: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """By pod name: a program, with its arguments, that starts the pod's command."""
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of every process, which take precedence over those of the job."""
    key: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    """The key that the processes of the run prove to each other."""

    def translate(self, manifest: decision.Manifest, config_maps: key_maps.KeyMaps) -> Translation:
        """Return the process to start for a pod.

        Raises:
            SpecError: the pod asks for what only a cluster can give.
        """
        spec = load.parse_template(manifest).spec
        container = spec.trains
        mounts = list(self._mounts(manifest["metadata"]["name"], spec, config_maps))
        places = {path: str(folder.target) for path, folder in mounts}
        if _runs_trainer(container):
            places.setdefault(paths.WORKSPACE_DIR, str(self.disk.job_folder))
        declared = container_variables.resolve(container, self._sources(config_maps))
        if environment.FAILURE_FILE in declared:
            failure = self.disk.layout.failure(manifest["metadata"]["name"])
            places[declared[environment.FAILURE_FILE]] = str(failure)
        local = name_substitution.Substitution(places)
        addresses = self.addresses[manifest["metadata"]["name"]]
        resolved = {
            name: addresses.apply(local.apply(value))
            for name, value in declared.items()
            if name not in _OF_CLUSTERS
        }
        command = [
            addresses.apply(local.apply(expansion.expand(word, declared)))
            for word in _command(container)
        ]
        wrapper = self.wrappers.get(manifest["metadata"]["name"], ())
        grace = spec.termination_grace_period_seconds
        output = resolved.get(environment.OUTPUT_DIR)
        needed = [folder for _, folder in mounts]
        wants_agent = declared.get(environment.AGENT_URL) != ""
        has_agent = wants_agent and not wrapper and _is_agent(container)
        if has_agent:
            token = self._token(manifest["metadata"]["name"])
            needed.append(token)
            resolved.setdefault(
                environment.PROGRESS_TOKEN_FILE, str(token.path / progress_report.TOKEN_FILE)
            )
        return Translation(
            launch=process.Launch(
                command=[*wrapper, *_with_this_python(command)],
                environment={**self._environment(resolved, container), **resolved},
                folder=self._folder(container, local),
                grace_seconds=float(GRACE_SECONDS if grace is None else grace),
            ),
            needed=needed,
            output=None if output is None else pathlib.Path(output),
            has_agent=has_agent,
        )

    def _token(self, pod: str) -> folders.VolumeFolder:
        """Return the folder of the token with which an agent asks, as the coordinator reports."""
        path = self.disk.layout.projected(pod, "agent")
        return folders.VolumeFolder(path, {progress_report.TOKEN_FILE: self.disk.token})

    def _sources(self, config_maps: key_maps.KeyMaps) -> container_variables.Sources:
        objects = {
            key_maps.ObjectKind.CONFIG_MAP: config_maps,
            key_maps.ObjectKind.SECRET: self.disk.secrets,
        }
        return container_variables.Sources(objects, self.inherited, self.overrides)

    def _mounts(
        self, name: str, spec: pods.PodSpec, config_maps: key_maps.KeyMaps
    ) -> Iterator[tuple[str, folders.VolumeFolder]]:
        """Yield each mount: its path in the pod, and the folder that replaces it here."""
        volumes_by_name = {volume.get("name"): volume for volume in spec.volumes}
        for mount in spec.trains.volume_mounts:
            if mount.name not in volumes_by_name:
                raise load.SpecError(f"volumeMounts: {mount.name!r} is not one of the volumes")
            if mount.sub_path_expr:
                raise load.SpecError("volumeMounts: subPathExpr needs a cluster: use subPath")
            folder = self.disk.folder(volumes_by_name[mount.name], name, config_maps)
            yield mount.mount_path, dataclasses.replace(folder, below=mount.sub_path)

    def _folder(
        self, container: pods.Container, local: name_substitution.Substitution
    ) -> pathlib.Path:
        """Return the working directory: the template's, if it is mounted, or else the job file's
        folder.

        The image's own folders do not exist here, and the user's files are next to the job's file.
        """
        mapped = local.apply(container.working_dir)
        if mapped == container.working_dir:
            return self.disk.job_folder
        return pathlib.Path(mapped)

    def _environment(self, values: Mapping[str, str], container: pods.Container) -> dict[str, str]:
        """Return the variables of the process in addition to those of its container."""
        result = {
            name: value
            for name, value in self.inherited.items()
            if name != environment.TF_CONFIG and not name.startswith("TFPARALLEL_")
        }
        for name in _NO_PROXY:
            result[name] = ",".join(filter(None, (result.get(name), ports.HOST)))
        # A shell's `python` is this one too, as it is in the image.
        here = str(pathlib.Path(sys.executable).parent)
        result["PATH"] = os.pathsep.join((here, result.get("PATH", os.defpath)))
        threads = str(max(1, _cores() // self.replicas))
        result = {**_DEFAULTS, **dict.fromkeys(_THREAD_LIMITS, threads), **result}
        result[environment.PROGRESS_SECONDS] = _REPORT_SECONDS
        result[environment.JOB_KEY] = self.key
        result[environment.FULL_DISK_IS_FINAL] = "1"
        result[environment.GRACE_SECONDS] = str(GRACE_SECONDS)
        devices = accelerators.count_gpus(container.resources.limits)
        if devices and environment.CPU_DEVICES not in values:
            result[environment.CPU_DEVICES] = str(devices)
        return result


def _runs_trainer(container: pods.Container) -> bool:
    """Whether the operator gave the container a job file.

    Then paths refer to the image's workspace.
    """
    return any(variable.name == environment.JOB_FILE for variable in container.env)


def _is_agent(container: pods.Container) -> bool:
    """Whether the trainer is the command itself, on a system where a fork with TensorFlow works."""
    command = (*container.command, *container.args)
    return _runs_trainer(container) and command == trainer_container.COMMAND and _FORKS


def _command(container: pods.Container) -> list[str]:
    if not container.command:
        raise load.SpecError(
            f"container {names.CONTAINER} has no command, and the entry point of its image cannot"
            " run here: write the command"
        )
    return [*container.command, *container.args]


def _with_this_python(command: list[str]) -> list[str]:
    return [sys.executable, *command[1:]] if command[0] in _PYTHONS else command


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
