"""The input of a run: the job's file, the files next to it, and the overrides."""

import dataclasses
import pathlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from tfparallel.job_source import archive, cluster_checks, key_maps, overrides, user_module
from tfparallel_operator.api import (
    load,
    names,
    pods,
    problems,
    trainer_spec,
    types,
    yaml_documents,
)
from tfparallel_operator.core import layout
from tfparallel_trainer.contract import source_code
from tfparallel_trainer.contract import user_module as interface

_UNUSED_KINDS = ("PersistentVolumeClaim", "Namespace")
"""Kinds of objects in a job's file that a folder replaces here."""


RESTARTS = 10
"""Maximum number of restarts after failures here, unless the user asks for more.

Otherwise a job without a limit, as TFJobs are, would repeat a mistake in its script forever.
"""

_LIMIT = "spec.runPolicy.backoffLimit"


@dataclasses.dataclass(frozen=True, slots=True)
class JobSource:
    """A checked job, and the other objects in its file."""

    job: types.TFParallelJob
    folder: pathlib.Path
    """The user's own files lie there: that of the job's file, unless the user names another."""
    config_maps: key_maps.KeyMaps
    notes: Sequence[str]
    """Differences between this machine and a cluster, one sentence each."""
    secrets: key_maps.KeyMaps = dataclasses.field(default_factory=dict)
    """The Secrets in the job's file."""
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of every process of this run, which take precedence over those of the job."""


def read(
    path: pathlib.Path,
    assignments: Sequence[str] = (),
    folder: pathlib.Path | None = None,
    environment: Mapping[str, str] | None = None,
) -> JobSource:
    """Read and check a job's file.

    Args:
        assignments: changes to fields of the job, as `--set` takes them.
        folder: where the user's own files lie; None: where the job's file lies.
        environment: variables of every process of this run.

    Raises:
        SpecError: with a sentence for each problem.
    """
    documents = yaml_documents.parse_objects(read_text(path), str(path))
    document = overrides.apply(yaml_documents.find_job(documents, str(path)), assignments)
    return build(document, folder or path.resolve().parent, documents, assignments, environment)


def build(
    document: Mapping[str, Any],
    folder: pathlib.Path,
    documents: Sequence[Mapping[str, Any]] = (),
    assignments: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> JobSource:
    """Check a job.

    Args:
        folder: where the user's own files lie.
        documents: what the job's file holds: the job and others.
        assignments: the changes that the document has by now.
        environment: variables of every process of this run.

    Raises:
        SpecError: with a sentence for each problem.
    """
    job = load.parse_manifest(document)
    bounded = _bounded(job, assignments)
    config_maps = key_maps.of_kind(key_maps.ObjectKind.CONFIG_MAP, documents)
    unpacked = _unpack(bounded, config_maps)
    source = JobSource(
        job=_with_source(bounded, unpacked),
        folder=folder.resolve(),
        config_maps={**config_maps, **unpacked},
        secrets=key_maps.of_kind(key_maps.ObjectKind.SECRET, documents),
        notes=(
            *_notes(job, documents),
            *_limits(job, bounded),
            *map(str, cluster_checks.find_warnings(job)),
        ),
        environment=environment or {},
    )
    if faults := _problems(source):
        raise load.SpecError(*faults)
    return source


def module_text(source: JobSource, trainer: trainer_spec.Trainer) -> str:
    """Read the user's module."""
    content = _files(source, trainer).read(trainer.module) or b""
    return content.decode(errors="replace")


def check_packed_module(job: types.TFParallelJob, folder: pathlib.Path) -> None:
    """Check the module of a job that a cluster runs from the files of a folder.

    Its packages are those of the image. An image of the user's may have another Python, which
    reads the module in its own way: then nothing is sure.

    Raises:
        SpecError: with a sentence for each problem.
    """
    if faults := find_module_problems(job, folder, has_packages=False):
        raise load.SpecError(*faults)


def find_module_problems(
    job: types.TFParallelJob, folder: pathlib.Path, *, has_packages: bool
) -> list[str]:
    """Return a sentence for each problem of a job's module, if it lies in a folder.

    Args:
        job: of the trainer, or of scripts: these have no such module.
        folder: where the module and the user's other files lie.
        has_packages: whether this Python has the packages that the replicas import.
    """
    trainer, containers = job.spec.trainer, _trainer_containers(job)
    if trainer is None or not containers or any(container.image for container in containers):
        return []
    elsewhere = _imports_elsewhere(containers, [variable.name for variable in trainer.env])
    return user_module.find_problems(
        trainer.module,
        user_module.files_of_folder(folder),
        _required_functions(job),
        has_packages=has_packages and not elsewhere,
    )


def code(source: JobSource, trainer: trainer_spec.Trainer) -> key_maps.KeyMap | None:
    """Return the module's files where the job's file brings them; None: they are in the folder."""
    return source.config_maps.get(_config_map(trainer.source))


def read_text(path: pathlib.Path) -> str:
    """Read a YAML file of the user's.

    Raises:
        SpecError: it cannot be read, or holds Python.
    """
    if path.suffix == ".py" and path.exists():
        raise load.SpecError(
            f"{path}: a Python file; give a job's YAML file, which `tfparallel init` writes for a"
            " model"
        )
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise load.SpecError(f"{path}: no such file; give the path of a job's YAML file") from error
    except IsADirectoryError as error:
        raise load.SpecError(f"{path}: a folder; give the path of a job's YAML file") from error
    except UnicodeDecodeError as error:
        raise load.SpecError(f"{path}: not UTF-8 text; give a job's YAML file") from error
    except OSError as error:
        raise load.SpecError(f"{path}: {error.strerror}; give a file that can be read") from error


def _config_map(source: source_code.Source | None) -> str:
    """Return the name of the ConfigMap that a job's code comes from; empty without one."""
    if source is None or source.config_map is None:
        return ""
    return source.config_map.name


def _unpack(job: types.TFParallelJob, config_maps: key_maps.KeyMaps) -> key_maps.KeyMaps:
    """Return the files of a job's archive as a ConfigMap, which here may have folders."""
    source = None if job.spec.trainer is None else job.spec.trainer.source
    if source is None or source.archive is None:
        return {}
    return {source.archive.config_maps[0]: archive.unpack(source.archive, config_maps)}


def _with_source(job: types.TFParallelJob, code: key_maps.KeyMaps) -> types.TFParallelJob:
    """Return the job without what an init container does for its source: none runs here."""
    trainer = job.spec.trainer
    if trainer is None or trainer.source is None:
        return job
    [name] = code or [_config_map(trainer.source)]
    source = source_code.Source(config_map=source_code.ConfigMapSource(name=name))
    spec = {"trainer": trainer.model_copy(update={"source": source})}
    return job.model_copy(update={"spec": job.spec.model_copy(update=spec)})


def _bounded(job: types.TFParallelJob, assignments: Sequence[str]) -> types.TFParallelJob:
    """Return the job with no more than RESTARTS; an assignment for this run may allow more."""
    policy = job.spec.run_policy
    if policy.backoff_limit <= RESTARTS or any(
        assignment.startswith(f"{_LIMIT}=") for assignment in assignments
    ):
        return job
    policy = policy.model_copy(update={"backoff_limit": RESTARTS})
    return job.model_copy(update={"spec": job.spec.model_copy(update={"run_policy": policy})})


def _limits(job: types.TFParallelJob, bounded: types.TFParallelJob) -> list[str]:
    if bounded is job:
        return []
    return [
        f"{_LIMIT} is {job.spec.run_policy.backoff_limit}; on this machine {RESTARTS} failures at "
        f"most lead to a restart, unless --set {_LIMIT}=N allows more"
    ]


def _notes(job: types.TFParallelJob, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    notes = [
        f"{d.get('kind')} {(d.get('metadata') or {}).get('name')!r} of the file needs a cluster and"
        " is left out"
        for d in documents
        if d.get("kind") not in (names.KIND, *key_maps.ObjectKind, *_UNUSED_KINDS)
    ]
    origin = None if job.spec.trainer is None else job.spec.trainer.source
    if origin is not None and origin.requirements is not None:
        notes.append(
            f"spec.trainer.source.requirements: {origin.requirements} is not installed here; the"
            " replicas use the packages of this Python"
        )
    for role, spec in job.spec.tf_replica_specs.items():
        others = load.parse_template(spec.template or {}).spec.others
        if others:
            notes.append(
                f"{role}: only the container {names.CONTAINER} runs here, not {', '.join(others)}"
            )
    return notes


def _problems(source: JobSource) -> list[str | problems.Problem]:
    faults: list[str | problems.Problem] = []
    spec = source.job.spec
    if spec.run_policy.suspend:
        field: problems.Place = ("spec", "runPolicy", "suspend")
        sentence = "received true; a suspended job does not run: set it to false"
        faults.append(problems.Problem(field, sentence))
    if spec.trainer is not None:
        name = _config_map(spec.trainer.source)
        if (files := code(source, spec.trainer)) is not None:
            there, origin = spec.trainer.module in files, f"ConfigMap {name!r}"
        else:
            there = (source.folder / spec.trainer.module).is_file()
            origin = f"the job's folder, {source.folder}"
        if there:
            faults += _module_problems(source, spec.trainer)
        else:
            sentence = f"received {spec.trainer.module!r}; no such file in {origin}"
            faults.append(problems.Problem(("spec", "trainer", "module"), sentence))
    return faults


def _required_functions(job: types.TFParallelJob) -> Sequence[str]:
    is_custom = layout.build(job).strategy is types.Strategy.CUSTOM
    return (*interface.REQUIRED, *((interface.BUILD_STRATEGY,) if is_custom else ()))


def _module_problems(source: JobSource, trainer: trainer_spec.Trainer) -> list[str]:
    containers = _trainer_containers(source.job)
    if not containers:
        return []
    names_of_variables = {*source.environment, *(variable.name for variable in trainer.env)}
    elsewhere = _imports_elsewhere(containers, names_of_variables)
    return user_module.find_problems(
        trainer.module,
        _files(source, trainer),
        _required_functions(source.job),
        has_packages=not elsewhere,
    )


def _imports_elsewhere(containers: Sequence[pods.Container], variables: Collection[str]) -> bool:
    """Whether replicas look for packages where this Python does not.

    Args:
        containers: of the replicas.
        variables: names of those that they get besides.
    """
    declared = {variable.name for container in containers for variable in container.env}
    return "PYTHONPATH" in {*declared, *variables} or any(
        container.working_dir for container in containers
    )


def _trainer_containers(job: types.TFParallelJob) -> list[pods.Container]:
    """Return the containers of the roles that run the shipped trainer on the user's module."""
    trainers = []
    for role, spec in job.spec.tf_replica_specs.items():
        listed = load.parse_template(spec.template or {}).spec.containers
        trains = next(
            (container for container in listed if container.name == names.CONTAINER), None
        )
        container = trains or pods.Container(name=names.CONTAINER)
        if role is not types.Role.PS and not container.command and not container.args:
            trainers.append(container)
    return trainers


def _files(source: JobSource, trainer: trainer_spec.Trainer) -> user_module.SourceFiles:
    """Return the files that a replica may import: those of the source, and of the job's folder."""
    brought = code(source, trainer) or {}

    def read(path: str) -> bytes | None:
        content = brought.get(path)
        if content is None:
            return user_module.read_file(source.folder / path)
        return content.encode() if isinstance(content, str) else content

    below = user_module.folder_names(source.folder)
    return user_module.SourceFiles(read, {*below, *map(user_module.import_name, brought)})
