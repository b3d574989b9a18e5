"""Loads a manifest: returns a valid job, or sentences that say what to change."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pydantic

from tfparallel_operator.api import (
    accelerators,
    gate,
    job_status,
    metadata,
    names,
    pods,
    problems,
    quantities,
    rules,
    schema,
    structure,
    trainer_spec,
    types,
)
from tfparallel_operator.api.problems import Place, Problem
from tfparallel_trainer.contract import environment, job_file

_MOST_SHOWN = 20
"""Maximum number of problems in one message."""


class SpecError(ValueError):
    """An invalid manifest, with one sentence for each problem."""

    def __init__(self, *faults: str | Problem) -> None:
        self.problems = tuple(map(str, faults))
        """The sentences."""
        self.located = tuple(
            Problem((), fault) if isinstance(fault, str) else fault for fault in faults
        )
        """The problems, with their fields if these are known."""
        shown = "; ".join(self.problems[:_MOST_SHOWN])
        more = len(self.problems) - _MOST_SHOWN
        super().__init__(f"{shown}; and {more} more" if more > 0 else shown)


class StatusError(SpecError):
    """An invalid status of a job. The operator doesn't decide on parts of a status."""


def read_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Return a job with its defaults, without checking the rules between its fields.

    Raises:
        SpecError: with one sentence for each field of a wrong type.
    """
    if document.get("apiVersion") != names.API_VERSION:
        raise SpecError(
            Problem(
                ("apiVersion",),
                f"received {document.get('apiVersion')!r}; write {names.API_VERSION}",
            )
        )
    _check_status_passed(document)
    try:
        return types.TFParallelJob.model_validate(document, by_name=False)
    except pydantic.ValidationError as error:
        faults = error.errors()
        of_status = [fault for fault in faults if fault["loc"][:1] == ("status",)]
        if of_status:
            raise StatusError(*map(_problem, of_status)) from error
        raise SpecError(*map(_problem, faults)) from error


def read_accepted_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Return a job whose spec another version of the operator has accepted.

    Fields that this version does not know are left out, and no rules are checked.

    Raises:
        SpecError: a field has a type that this version does not support.
    """
    return read_job(_without_unknown(document))


def is_of_newer_version(document: Mapping[str, Any]) -> bool:
    """Whether the only problems of an object are fields that this version does not know.

    The API server drops fields that its schema lacks, so they belong to a newer operator's schema.
    """
    try:
        parse_job(_without_unknown(document))
    except SpecError:
        return False
    return True


def _without_unknown(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a manifest without the fields that this version does not know."""
    pruned = copy.deepcopy(dict(document))
    try:
        types.TFParallelJob.model_validate(pruned, by_name=False)
    except pydantic.ValidationError as error:
        for fault in error.errors():
            if fault["type"] == problems.UNKNOWN:
                _remove(pruned, fault["loc"])
    return pruned


def read_status(document: Mapping[str, Any]) -> job_status.JobStatus:
    """Return the status of an object whose spec may be invalid.

    Raises:
        StatusError: with one sentence for each field of a wrong type.
    """
    _check_status_passed(document)
    try:
        return job_status.JobStatus.model_validate(document.get("status") or {})
    except pydantic.ValidationError as error:
        raise StatusError(*(_problem(fault, ("status",)) for fault in error.errors())) from error


def _check_status_passed(document: Mapping[str, Any]) -> None:
    """Raise `StatusError` if the gate has removed the status of an object."""
    if gate.STATUS_PROBLEM in document:
        raise StatusError(str(document[gate.STATUS_PROBLEM]))


def parse_job(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Check a job as the API server would, and return it with its defaults.

    Raises:
        SpecError: with one sentence for each invalid field.
    """
    mismatches = list(structure.mismatches(schema.job_schema(), document))
    try:
        job = read_job(document)
    except StatusError:
        raise
    except SpecError as error:
        places = {problem.location for problem in mismatches}
        others = [problem for problem in error.located if problem.location not in places]
        raise SpecError(*_unique(*mismatches, *others, *_among_known(document))) from error
    if faults := mismatches or _unique(*_broken_rules(job)):
        raise SpecError(*faults)
    return job


def _among_known(document: Mapping[str, Any]) -> Sequence[Problem]:
    """Return the problems of a manifest other than its unknown fields."""
    pruned = _without_unknown(document)
    try:
        if pruned != document:
            parse_job(pruned)
    except StatusError:
        pass
    except SpecError as error:
        return error.located
    return ()


def _broken_rules(job: types.TFParallelJob) -> Iterator[Problem]:
    """Yield the problems between fields whose types are valid."""
    templates = list(_template_problems(job.spec))
    yield from templates
    value = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    violations = list(rules.violations(schema.job_schema(), value))
    yield from violations
    if job.spec.mesh is not None and not templates and not violations:
        try:
            _check_mesh(job.spec, job.spec.mesh)
        except SpecError as error:
            yield from error.located


def _template_problems(spec: types.Spec) -> Iterator[Problem]:
    for role, replica in spec.tf_replica_specs.items():
        if replica.template is None:
            continue
        location: Place = ("spec", "tfReplicaSpecs", role.value, "template")
        try:
            pod = parse_template(replica.template, location).spec
        except SpecError as error:
            yield from error.located
        else:
            location = (*location, "spec", "containers")
            yield from _wrong_names(location, pod, needs_container=spec.trainer is None)
            yield from _shared_mounts(location, pod, spec.trainer)


def _unique(*faults: Problem) -> list[Problem]:
    return list(dict.fromkeys(faults))


def parse_manifest(document: Mapping[str, Any]) -> types.TFParallelJob:
    """Check a manifest, including its metadata, which the schema of jobs does not describe.

    As in the API server, a null field counts as absent, and the status is ignored.

    Raises:
        SpecError: with one sentence for each invalid field.
    """
    written = {key: value for key, value in document.items() if key != "status"}
    pruned = structure.without_nulls(schema.job_schema(), metadata.generate_name(written))
    of_metadata: list[Problem] = []
    try:
        read_metadata = metadata.ManifestMetadata.model_validate(pruned.get("metadata", {}))
        pruned["metadata"] = read_metadata.model_dump(by_alias=True, exclude_none=True)
    except pydantic.ValidationError as error:
        of_metadata += map(_metadata_problem, error.errors())
    places = {problem.location for problem in of_metadata}
    try:
        job = parse_job(pruned)
    except SpecError as error:
        others = (problem for problem in error.located if problem.location not in places)
        raise SpecError(*of_metadata, *others) from error
    if faults := (*of_metadata, *_wrong_quantities(job)):
        raise SpecError(*faults)
    return job


def _metadata_problem(fault: Any) -> Problem:
    """Return the problems of the metadata, which the schema of jobs does not describe."""
    properties = dict(schema.job_schema()["properties"])
    properties["metadata"] = metadata.ManifestMetadata.model_json_schema()
    return problems.from_pydantic(fault, {"properties": properties}, ("metadata",))


def _wrong_quantities(job: types.TFParallelJob) -> Iterator[Problem]:
    """Yield the problems of pod templates that the API server would find only in the pods."""
    for role, spec in job.spec.tf_replica_specs.items():
        location: Place = ("spec", "tfReplicaSpecs", role.value, "template", "spec")
        pod = parse_template(spec.template or {}).spec
        lists = (("containers", pod.containers), ("initContainers", pod.init_containers))
        for kind, containers in lists:
            for number, container in enumerate(containers):
                inner = (*location, kind, number, "resources")
                yield from quantities.find_problems(inner, container.resources)


def parse_template(template: Mapping[str, Any], location: Place = ("template",)) -> pods.Template:
    """Parse the part of a pod template that the operator knows.

    Raises:
        SpecError: with one sentence for each field of a wrong type.
    """
    try:
        return pods.Template.model_validate(template)
    except pydantic.ValidationError as error:
        raise SpecError(*(_problem(fault, location) for fault in error.errors())) from error


def _wrong_names(location: Place, pod: pods.PodSpec, *, needs_container: bool) -> Iterator[Problem]:
    """Check for the container tensorflow in a template, which CEL rules cannot see."""
    received = [container.name for container in pod.containers]
    count = received.count(names.CONTAINER)
    if count > 1 or (needs_container and not count):
        which = "only one container" if count else "the container that trains"
        message = f"received {problems.show(received)}; name {which} {names.CONTAINER!r}"
        yield Problem(location, message)


def _shared_mounts(
    location: Place, pod: pods.PodSpec, trainer: trainer_spec.Trainer | None
) -> Iterator[Problem]:
    """Check that no volume of the trainer has the mount path of a volume of the template."""
    template_volumes = {volume.get("name") for volume in pod.volumes}
    volumes = () if trainer is None else trainer.volumes
    added = {
        volume.mount_path: volume.name for volume in volumes if volume.name not in template_volumes
    }
    for container in pod.containers:
        for mount in container.volume_mounts if container.name == names.CONTAINER else ():
            name = added.get(mount.mount_path.rstrip("/"))
            if name is not None:
                yield Problem(
                    location,
                    f"volume {mount.name!r} is mounted at {mount.mount_path}, as {name!r} of"
                    " spec.trainer.volumes is: give one of them another mountPath",
                )


def _check_mesh(spec: types.Spec, mesh: job_file.Mesh) -> None:
    """Check that the mesh fits the devices of the templates, which CEL rules cannot see."""
    roles = spec.tf_replica_specs
    devices = {role: devices_of(spec) for role, spec in roles.items()}
    if len(set(devices.values())) > 1:
        counts = " and ".join(f"{role} has {count}" for role, count in devices.items())
        raise SpecError(
            Problem(
                ("spec", "tfReplicaSpecs"),
                f"a mesh needs equally many devices in each replica, and {counts}: give them the"
                " same devices",
            )
        )
    if not mesh.auto:
        try:
            full = mesh.for_devices(
                sum(spec.replicas * devices[role] for role, spec in roles.items())
            )
            if spec.trainer is not None:
                full.check_batch(spec.trainer.global_batch_size)
        except ValueError as error:
            raise SpecError(Problem(("spec", "mesh"), str(error))) from error


def devices_of(spec: types.ReplicaSpec) -> int:
    """Return the number of devices of each replica of a role, as the job gives it.

    Raises:
        SpecError: the template is invalid.
    """
    gpus = gpus_of(spec)
    if gpus:
        return gpus
    container = _trainer_container(spec)
    variables = {} if container is None else {entry.name: entry.value for entry in container.env}
    count = quantities.parse_count(variables.get(environment.CPU_DEVICES) or "")
    return 1 if count is None else count


def gpus_of(spec: types.ReplicaSpec) -> int:
    """Return the number of GPUs that the container tensorflow of each replica of a role asks for.

    Raises:
        SpecError: the template is invalid.
    """
    if spec.devices is not None:
        return spec.devices
    container = _trainer_container(spec)
    return 0 if container is None else accelerators.count_gpus(container.resources.limits)


def memory_of(spec: types.ReplicaSpec) -> int | None:
    """Return the bytes of memory that the container tensorflow of each replica of a role requests.

    Without a request it is the limit, as in Kubernetes.

    Raises:
        SpecError: the template is invalid.
    """
    container = _trainer_container(spec)
    if container is None:
        return None
    resources = container.resources
    asked = {**resources.limits, **(resources.requests or {})}.get("memory")
    parsed = None if asked is None else quantities.parse(str(asked).strip())
    return None if not parsed else int(parsed)


def _trainer_container(spec: types.ReplicaSpec) -> pods.Container | None:
    for container in parse_template(spec.template or {}).spec.containers:
        if container.name == names.CONTAINER:
            return container
    return None


def _remove(document: Any, location: Sequence[int | str]) -> None:
    """Remove a field, in place. It may be gone already, if YAML aliases share an object."""
    *outer, last = location
    for part in outer:
        if isinstance(document, Mapping) and part not in document:
            return
        document = document[part]
    document.pop(last, None)


def _problem(fault: Any, outer: Place = ()) -> Problem:
    return problems.from_pydantic(fault, schema.job_schema(), outer)
