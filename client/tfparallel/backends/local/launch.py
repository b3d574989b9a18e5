"""From a pod's manifest to what is started for it on this machine."""

import dataclasses
import os
import pathlib
import secrets
import sys
from collections.abc import Iterator, Mapping, Sequence

from tfparallel.backends.local import folders, ports, process, text, variables, volumes
from tfparallel.job_source import key_maps
from tfparallel_operator.api import accelerators, load, names, paths, pods
from tfparallel_operator.core import decision
from tfparallel_operator.core.pods import expansion
from tfparallel_trainer.contract import environment

GRACE_SECONDS = 10
"""How long a process may take to end where its template says nothing: shorter than a pod's 30 s,
because somebody sits and waits."""

_THREAD_LIMITS = ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS")
"""Without them each of N processes starts as many threads as the machine has cores."""

_DEFAULTS = {
    "PYTHONUNBUFFERED": "1",  # lines appear when they are written
    "TF_CPP_MIN_LOG_LEVEL": "1",  # without a dozen lines of information from every process
}

_REPORT_SECONDS = "0.1"
"""How often the coordinator reports at most: here nobody else waits for the endpoint, and a bar
lags its lines by no more."""

_NO_PROXY = ("no_proxy", "NO_PROXY")
"""gRPC and urllib would ask a configured proxy for the way to loopback."""

_PYTHONS = ("python", "python3")


@dataclasses.dataclass(frozen=True, slots=True)
class Translation:
    """A pod as a process, and the folders that have to be there before it starts."""

    launch: process.Launch
    needed: Sequence[folders.Folder]
    output: pathlib.Path | None
    """Where the shipped trainer writes; None for a command that names no such folder."""


@dataclasses.dataclass(frozen=True, slots=True)
class Launcher:
    """Translates pods of one job. Reads no file and starts nothing."""

    disk: volumes.Volumes
    addresses: text.Substitution
    """From the addresses of the replicas in a cluster to those on loopback."""
    replicas: int
    """How many processes share the machine."""
    inherited: Mapping[str, str]
    """The runner's own environment."""
    wrappers: Mapping[str, Sequence[str]] = dataclasses.field(default_factory=dict)
    """By the names of pods: a program, with its arguments, that starts the pod's command."""
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of every process, which win over those of the job."""
    key: str = dataclasses.field(default_factory=lambda: secrets.token_hex(16))
    """What the processes of the run prove to each other that they know."""

    def translate(self, manifest: decision.Manifest, config_maps: key_maps.KeyMaps) -> Translation:
        """Return what to start for a pod.

        Raises:
            SpecError: the pod asks for what only a cluster can give.
        """
        spec = load.parse_template(manifest).spec
        container = spec.trains
        mounts = list(self._mounts(manifest["metadata"]["name"], spec, config_maps))
        places = {path: str(folder.target) for path, folder in mounts}
        if _runs_trainer(container):
            places.setdefault(paths.WORKSPACE_DIR, str(self.disk.job_folder))
        declared = variables.resolve(container, self._sources(config_maps))
        if environment.FAILURE_FILE in declared:
            failure = self.disk.layout.failure(manifest["metadata"]["name"])
            places[declared[environment.FAILURE_FILE]] = str(failure)
        local = text.Substitution(places)
        resolved = {
            name: self.addresses.apply(local.apply(value))
            for name, value in declared.items()
            if name != environment.JOB_NAMESPACE  # no namespace has this run
        }
        command = [
            self.addresses.apply(local.apply(expansion.expand(word, declared)))
            for word in _command(container)
        ]
        wrapper = self.wrappers.get(manifest["metadata"]["name"], ())
        grace = spec.termination_grace_period_seconds
        output = resolved.get(environment.OUTPUT_DIR)
        return Translation(
            launch=process.Launch(
                command=[*wrapper, *_with_this_python(command)],
                environment={**self._environment(resolved, container), **resolved},
                folder=self._folder(container, local),
                grace_seconds=float(GRACE_SECONDS if grace is None else grace),
            ),
            needed=[folder for _, folder in mounts],
            output=None if output is None else pathlib.Path(output),
        )

    def _sources(self, config_maps: key_maps.KeyMaps) -> variables.Sources:
        objects = {
            key_maps.Kind.CONFIG_MAP: config_maps,
            key_maps.Kind.SECRET: self.disk.secrets,
        }
        return variables.Sources(objects, self.inherited, self.overrides)

    def _mounts(
        self, name: str, spec: pods.PodSpec, config_maps: key_maps.KeyMaps
    ) -> Iterator[tuple[str, folders.Folder]]:
        """Yield each mount: its path in the pod, and the folder that stands for it here."""
        volumes_by_name = {volume.get("name"): volume for volume in spec.volumes}
        for mount in spec.trains.volume_mounts:
            if mount.name not in volumes_by_name:
                raise load.SpecError(f"volumeMounts: {mount.name!r} is not one of the volumes")
            if mount.sub_path_expr:
                raise load.SpecError("volumeMounts: subPathExpr needs a cluster: use subPath")
            folder = self.disk.folder(volumes_by_name[mount.name], name, config_maps)
            yield mount.mount_path, dataclasses.replace(folder, below=mount.sub_path)

    def _folder(self, container: pods.Container, local: text.Substitution) -> pathlib.Path:
        """Return the working directory: a mounted one as asked for, else the job file's folder.

        An image's own folders do not exist here; the user's files lie next to the job's file.
        """
        mapped = local.apply(container.working_dir)
        if mapped == container.working_dir:
            return self.disk.job_folder
        return pathlib.Path(mapped)

    def _environment(self, values: Mapping[str, str], container: pods.Container) -> dict[str, str]:
        """Return what the process gets besides the variables of its container."""
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
    """Whether the operator gave the container a job file: then the image's workspace is meant."""
    return any(variable.name == environment.JOB_FILE for variable in container.env)


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
