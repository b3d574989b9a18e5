"""From what a person wrote to a checked job, or to sentences that say what to change."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic
import yaml

from tfparallel_operator.api import (
    job_status,
    names,
    pods,
    quantities,
    rules,
    schema,
    structure,
    trainer_spec,
    types,
)
from tfparallel_trainer.contract import environment, job_file


class SpecError(ValueError):
    """A manifest cannot be used as given; one sentence for each problem."""

    def __init__(self, *problems: str) -> None:
        super().__init__("; ".join(problems))
        self.problems = problems


class StatusError(SpecError):
    """The status of a job cannot be read; nothing is decided on a part of it."""


def parse_documents(text: str, source: str) -> list[Mapping[str, Any]]:
    """Read the YAML documents of a file, empty ones left out.

    Raises:
        SpecError: the text is not YAML, or a document is not a mapping.
    """
    try:
        documents = [document for document in yaml.safe_load_all(text) if document is not None]
    except yaml.YAMLError as error:
        raise SpecError(f"{source}: not YAML: {' '.join(str(error).split())}") from error
    for document in documents:
        if not isinstance(document, Mapping):
            raise SpecError(
                f"{source}: expected fields such as apiVersion and kind, received "
                f"{str(document)[:60]!r}"
            )
    return documents


def find_job(documents: list[Mapping[str, Any]], source: str) -> Mapping[str, Any]:
    """Return the one TFParallelJob among the documents of a file.

    Raises:
        SpecError: there is none, or more than one.
    """
    jobs = [document for document in documents if document.get("kind") == names.KIND]
    if len(jobs) == 1:
        return jobs[0]
    if jobs:
        raise SpecError(f"{source}: holds {len(jobs)} jobs of kind {names.KIND}; give one a file")
    kinds = ", ".join(repr(document.get("kind")) for document in documents) or "nothing"
    remedy = f"; tfparallel convert {source} makes one of it" if "'TFJob'" in kinds else ""
    raise SpecError(f"{source}: expected kind {names.KIND!r}, received {kinds}{remedy}")


def read_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Return a job with its defaults filled in; the rules between its fields are not looked at.

    Raises:
        SpecError: with one sentence for each field of a wrong type.
    """
    if document.get("apiVersion") != names.API_VERSION:
        raise SpecError(
            f"apiVersion: received {document.get('apiVersion')!r}; write {names.API_VERSION}"
        )
    try:
        return types.TFParallelJob.model_validate(document)
    except pydantic.ValidationError as error:
        faults = error.errors()
        of_status = [fault for fault in faults if fault["loc"][:1] == ("status",)]
        if of_status:
            raise StatusError(*map(_sentence, of_status)) from error
        raise SpecError(*map(_sentence, faults)) from error


def read_accepted_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Return a job whose spec some version of the operator has accepted.

    Fields that this version does not know are left out, and no rule is looked at: the job runs.

    Raises:
        SpecError: a field has a type that this version cannot use.
    """
    document = copy.deepcopy(dict(document))
    try:
        types.TFParallelJob.model_validate(document)
    except pydantic.ValidationError as error:
        for fault in error.errors():
            if fault["type"] == "extra_forbidden":
                _remove(document, fault["loc"])
    return read_job(document)


def read_status(document: Mapping[str, Any]) -> job_status.JobStatus:
    """Return the status of an object whose spec may be wrong.

    Raises:
        StatusError: with one sentence for each field of a wrong type.
    """
    try:
        return job_status.JobStatus.model_validate(document.get("status") or {})
    except pydantic.ValidationError as error:
        raise StatusError(*(_sentence(fault, "status") for fault in error.errors())) from error


def parse_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Check a job as the API server would, and return it with its defaults filled in.

    Raises:
        SpecError: with one sentence for each field that is wrong.
    """
    wrong = list(structure.mismatches(schema.job_schema(), document))
    if wrong:
        raise SpecError(*wrong)
    job = read_job(document)
    for role, spec in job.spec.tf_replica_specs.items():
        if spec.template is not None:
            field = f"spec.tfReplicaSpecs.{role}.template"
            _check_template(field, spec.template, needs_container=job.spec.trainer is None)
            _check_mounts(field, spec.template, job.spec.trainer)
    value = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    found = list(rules.violations(schema.job_schema(), value))
    if found:
        raise SpecError(*(f"{v.path}: {v.message}" if v.path else v.message for v in found))
    if job.spec.mesh is not None:
        _check_mesh(job.spec, job.spec.mesh)
    return job


def parse_manifest(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Check a job that a person wrote, its metadata included, which the API server has for itself.

    Raises:
        SpecError: with one sentence for each field that is wrong.
    """
    metadata = document.get("metadata")
    if isinstance(metadata, Mapping):
        unknown = [f"metadata.{key}" for key in metadata if key not in _METADATA]
        if unknown:
            raise SpecError(*(f"{field}: {_REMEDIES['extra_forbidden']}" for field in unknown))
    job = parse_job(document)
    if problems := list(_wrong_quantities(job)):
        raise SpecError(*problems)
    return job


def _wrong_quantities(job: types.TFParallelJob) -> Iterator[str]:
    """Yield what the API server refuses in pods, which a job's schema does not describe."""
    for role, spec in job.spec.tf_replica_specs.items():
        pod = parse_template(spec.template or {}).spec
        lists = (("containers", pod.containers), ("initContainers", pod.init_containers))
        for kind, containers in lists:
            for number, container in enumerate(containers):
                field = f"spec.tfReplicaSpecs.{role}.template.spec.{kind}.{number}.resources"
                yield from quantities.find_problems(field, container.resources)


_METADATA = frozenset(
    {
        *("name", "generateName", "namespace", "labels", "annotations", "finalizers"),
        *("ownerReferences", "managedFields", "uid", "resourceVersion", "generation", "selfLink"),
        *("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds"),
    }
)
"""Fields of the metadata of any object."""


def parse_template(template: Mapping[str, Any], field: str = "template") -> pods.Template:
    """Read the part of a pod template that this project knows.

    Raises:
        SpecError: with one sentence for each field of a wrong type.
    """
    try:
        return pods.Template.model_validate(template)
    except pydantic.ValidationError as error:
        raise SpecError(*(_sentence(fault, field) for fault in error.errors())) from error


def _check_template(field: str, template: Mapping[str, Any], *, needs_container: bool) -> None:
    """Look into a template, which no rule of the API server can."""
    containers = parse_template(template, field).spec.containers
    received = [container.name for container in containers]
    if needs_container and names.CONTAINER not in received:
        raise SpecError(
            f"{field}.spec.containers: received {received}; name the container that trains "
            f"{names.CONTAINER!r}"
        )


def _check_mounts(
    field: str, template: Mapping[str, Any], trainer: trainer_spec.Trainer | None
) -> None:
    """See that no volume of the trainer is mounted where a template has one of its own."""
    pod = parse_template(template, field).spec
    taken = {volume.get("name") for volume in pod.volumes}
    volumes = () if trainer is None else trainer.volumes
    added = {volume.mount_path: volume.name for volume in volumes if volume.name not in taken}
    for container in pod.containers:
        for mount in container.volume_mounts if container.name == names.CONTAINER else ():
            name = added.get(mount.mount_path.rstrip("/"))
            if name is not None:
                raise SpecError(
                    f"{field}.spec.containers: volume {mount.name!r} is mounted at"
                    f" {mount.mount_path}, as {name!r} of spec.trainer.volumes is: give one of them"
                    " another mountPath"
                )


def _check_mesh(spec: types.Spec, mesh: job_file.Mesh) -> None:
    """See that the mesh fits the devices that templates ask for, which no rule can."""
    roles = spec.tf_replica_specs
    devices = {role: devices_of(one) for role, one in roles.items()}
    if len(set(devices.values())) > 1:
        told = " and ".join(f"{role} has {count}" for role, count in devices.items())
        raise SpecError(
            f"spec.tfReplicaSpecs: a mesh needs equally many devices in each replica, and {told}:"
            " give them the same devices"
        )
    if not mesh.auto:
        try:
            full = mesh.over(sum(one.replicas * devices[role] for role, one in roles.items()))
            if spec.trainer is not None:
                full.check_batch(spec.trainer.global_batch_size)
        except ValueError as error:
            raise SpecError(f"spec.mesh: {error}") from error


def devices_of(spec: types.ReplicaSpec) -> int:
    """Return how many devices each replica of a role has, as far as the job says.

    Raises:
        SpecError: the template is none.
    """
    if spec.devices is not None:
        return spec.devices
    for container in parse_template(spec.template or {}).spec.containers:
        if container.name == names.CONTAINER:
            parts = {variable.name: variable.value for variable in container.env}
            given = container.resources.limits.get(names.GPU_RESOURCE)
            count = str(given or parts.get(environment.CPU_DEVICES, ""))
            return int(count) if count.isdecimal() else 1
    return 1


def _remove(document: Any, place: Sequence[int | str]) -> None:
    """Remove a field, in place."""
    *outer, last = place
    for part in outer:
        document = document[part]
    del document[last]


_REMEDIES = {
    "extra_forbidden": "unknown field; remove it or correct its spelling",
    "missing": "missing; it is required",
}
_TYPE_REMEDIES = {
    "string_type": "put it in quotes",
    "model_type": "write fields, such as containers: [...]",
    "list_type": "write a list, such as [one, two]",
}


def _sentence(error: Any, field: str = "") -> str:
    """Say where a value is wrong, what was received and what to do."""
    places = [field, *(str(part) for part in error["loc"] if part != "[key]")]
    path = ".".join(filter(None, places))
    kind, received = error["type"], error["input"]
    if kind in _REMEDIES:
        return f"{path}: {_REMEDIES[kind]}"
    message = _TYPE_REMEDIES.get(kind, error["msg"].removeprefix("Value error, "))
    if isinstance(received, Mapping):
        return f"{path}: {message}"
    return f"{path}: received {received!r}; {message[0].lower()}{message[1:]}"
