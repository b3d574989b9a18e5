"""The manifest of a job, from a model's module or from another manifest."""

import copy
import difflib
import os
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypedDict, Unpack

from tfparallel import job_variables
from tfparallel.job_source import source as sources
from tfparallel_operator.api import load, metadata, names, schema, structure, types, yaml_documents

Source = str | os.PathLike[str] | Mapping[str, Any] | types.TFParallelJob
"""The path of a model.py or of a job's YAML file, a manifest, or a job."""

_MAX_NAME = 40
"""Leaves room for the names of pods, which are names of hosts."""

_TRAINER = {
    "epochs": "epochs",
    "steps": "steps",
    "global_batch_size": "globalBatchSize",
    "seed": "seed",
}
_LENGTHS = {"epochs", "steps"}
_LEADERS = ("Chief", "Master")


class Options(TypedDict, total=False):
    """Fields of a job; None and an absent option leave the field as it is."""

    name: str | None
    """Of the job. Of a module: its name, or its folder's if the file is model.py."""
    workers: int | None
    """Number of workers."""
    max_workers: int | None
    """Most workers that the job may be scaled to; absent: their number stays."""
    parameter_servers: int | None
    """Number of parameter servers; with them, training is asynchronous."""
    evaluator: bool | None
    """Whether a replica of its own evaluates each checkpoint."""
    devices: int | None
    """GPUs of each worker, and of a chief that the job names."""
    strategy: str | None
    """Such as ModelSplit; absent: it follows from the replicas."""
    mesh: Mapping[str, Any] | None
    """How the devices share the model, with strategy ModelSplit."""
    epochs: int | None
    """How often the training data is gone through. Of a module: 1, unless steps is set."""
    steps: int | None
    """How many optimizer steps are made in all."""
    global_batch_size: int | None
    """Examples in one optimizer step over all replicas together."""
    seed: int | None
    """Of initial weights, order of examples and dropout."""
    checkpoint: str | Mapping[str, Any] | None
    """A claim, a URI such as s3://bucket/prefix, or all fields of spec.trainer.checkpoint."""
    env: Mapping[str, str] | None
    """Variables of every replica, in place of those of their names."""
    secrets: Sequence[str] | None
    """Names of Secrets; each of their keys becomes a variable of every replica."""
    image: str | None
    """Of the replicas; absent: the trainer's, as the operator has it."""


def read(
    source: Source, folder: pathlib.Path | None = None, **options: Unpack[Options]
) -> tuple[dict[str, Any], pathlib.Path]:
    """Return the manifest of a source, and the folder of its model's files.

    Args:
        folder: where the model's files lie; None: where the source lies, or here.

    Raises:
        SpecError: a file cannot be read, or the job is wrong.
    """
    if isinstance(source, types.TFParallelJob):
        exclude = {"status"}
        source = source.model_dump(
            mode="json", by_alias=True, exclude_unset=True, exclude_none=True, exclude=exclude
        )
    if isinstance(source, Mapping):
        return change(source, **options), folder or pathlib.Path()
    path = pathlib.Path(source)
    if path.suffix == ".py":
        return build(path, **options), folder or path.parent
    if path.suffix in (".yaml", ".yml", ".json"):
        return change(_read_file(path), **options), folder or path.parent
    raise load.SpecError(f"{path}: give the path of a Python module, or of a job's YAML file")


def build(module: pathlib.Path, **options: Unpack[Options]) -> dict[str, Any]:
    """Return the manifest of a job that trains a module.

    Without options, one worker trains it for one epoch.

    Raises:
        SpecError: the file does not exist, or the job is wrong.
    """
    if not module.is_file():
        raise load.SpecError(f"{module}: no such file; give the path of your model.py")
    has_length = any(options.get(length) is not None for length in _LENGTHS)
    document = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {"name": name_of(module)},
        "spec": {
            "trainer": {"module": module.name, **({} if has_length else {"epochs": 1})},
            "tfReplicaSpecs": {"Worker": {"replicas": 1}},
        },
    }
    return change(document, **options)


def name_of(module: pathlib.Path) -> str:
    """Return the name of a job for a module: that of the file, or of its folder for model.py."""
    path = module.resolve()
    return to_name(path.parent.name if path.stem == "model" else path.stem)


def to_name(text: str) -> str:
    """Return a name of a job that is like a name of a file or of a function."""
    name = re.sub("[^a-z0-9]+", "-", text.lower())[:_MAX_NAME].strip("-")
    return name if name[:1].isalpha() else f"job-{name}".rstrip("-")


def change(document: Mapping[str, Any], **options: Unpack[Options]) -> dict[str, Any]:
    """Return a manifest with fields set.

    Raises:
        SpecError: the job is wrong with them.
        TypeError: there is no such option.
    """
    options_by_name = Options.__annotations__
    for option in options.keys() - options_by_name.keys():
        near = difflib.get_close_matches(option, options_by_name, n=1)
        hint = (
            f"did you mean {near[0]!r}?"
            if near
            else f"the options are {', '.join(options_by_name)}."
        )
        raise TypeError(f"{option!r} is no option of a job: {hint}")
    values: dict[str, Any] = {key: value for key, value in options.items() if value is not None}
    changed = structure.without_nulls(schema.job_schema(), copy.deepcopy(document))
    if not all(isinstance(value, Mapping) for value in _objects(changed)):
        load.parse_manifest(changed)
    spec = changed.setdefault("spec", {})
    if "name" in values:
        changed["metadata"] = {**changed.get("metadata", {}), "name": values["name"]}
    _set_trainer(spec, values)
    _set_roles(spec.setdefault("tfReplicaSpecs", {}), values)
    for field in values.keys() & {"strategy", "mesh"}:
        spec[field] = values[field] if field == "strategy" else dict(values[field])
    if "image" in values:
        _set_image(spec["tfReplicaSpecs"], values["image"])
    changed = dict(metadata.generate_name(changed))
    changed = dict(job_variables.add(changed, values.get("env", {}), values.get("secrets", ())))
    load.parse_manifest(changed)
    return changed


def _objects(document: Mapping[str, Any]) -> Iterator[Any]:
    """Yield what has to be objects before options can change their fields."""
    spec = document.get("spec", {})
    yield from (document.get("metadata", {}), spec)
    if isinstance(spec, Mapping):
        roles = spec.get("tfReplicaSpecs", {})
        yield from (spec.get("trainer", {}), roles)
        if isinstance(roles, Mapping):
            yield from roles.values()


def _set_trainer(spec: dict[str, Any], values: Mapping[str, Any]) -> None:
    options = [option for option in (*_TRAINER, "checkpoint") if option in values]
    if not options:
        return
    if "trainer" not in spec:
        raise load.SpecError(
            f"{options[0]} is {values[options[0]]!r}, and the job has no spec.trainer: change the"
            " command of its template"
        )
    trainer = spec["trainer"]
    if _LENGTHS & values.keys():
        for length in _LENGTHS:
            trainer.pop(length, None)
    trainer |= {_TRAINER[option]: values[option] for option in options if option in _TRAINER}
    if "checkpoint" in values:
        trainer["checkpoint"] = _checkpoint(values["checkpoint"])


def _checkpoint(value: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(value, str):
        return {"uri" if "://" in value else "claim": value}
    return dict(value)


def _set_roles(roles: dict[str, Any], values: Mapping[str, Any]) -> None:
    counts = {"Worker": values.get("workers"), "PS": values.get("parameter_servers")}
    if "evaluator" in values:
        counts["Evaluator"] = int(values["evaluator"])
    for role, count in counts.items():
        if count == 0:
            roles.pop(role, None)
        elif count is not None:
            roles[role] = {**(roles.get(role) or {}), "replicas": count}
    if "max_workers" in values:
        roles["Worker"] = {**(roles.get("Worker") or {}), "maxReplicas": values["max_workers"]}
    if "devices" in values:
        for role in {*_LEADERS, "Worker"} & roles.keys():
            roles[role] = {**(roles[role] or {}), "devices": values["devices"]}


def _set_image(roles: dict[str, Any], image: str) -> None:
    for role, fields in roles.items():
        template = (fields or {}).get("template") or {}
        load.parse_template(template, ("spec", "tfReplicaSpecs", role, "template"))
        pod_spec = {"containers": [{"name": names.CONTAINER}], **(template.get("spec") or {})}
        roles[role] = job_variables.change_container(
            {**(fields or {}), "template": {**template, "spec": pod_spec}},
            lambda container: {**container, "image": image},
        )


def _read_file(path: pathlib.Path) -> Mapping[str, Any]:
    """Return the one document of a file.

    Raises:
        SpecError: it cannot be read, or holds other objects besides.
    """
    documents = yaml_documents.parse_objects(sources.read_text(path), str(path))
    job = yaml_documents.find_job(documents, str(path))
    others = [str(document.get("kind")) for document in documents if document is not job]
    if others:
        raise load.SpecError(
            f"{path}: holds {', '.join(others)} besides the job: create them with kubectl apply,"
            " and put the job into a file of its own"
        )
    return job
