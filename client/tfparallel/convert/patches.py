"""The patches that a TrainJob makes to the pods of its runtime, applied to a template."""

from collections.abc import Iterator
from typing import Any

from tfparallel.convert import conversion
from tfparallel.convert.trainjob_differences import TrainJobDifference

OVERRIDES = "podTemplateOverrides"
"""Until version 2.1 of the Trainer; the later of two entries wins."""
PATCHES = "runtimePatches"
"""From version 2.2 on."""

_NODE = "node"
"""The name of the runtime's job that trains, and of its container."""
_KUEUE = "kueue.x-k8s.io/"
_POD = (
    *("serviceAccountName", "nodeSelector", "affinity", "tolerations", "securityContext"),
    *("volumes", "containers", "initContainers", "schedulingGates", "imagePullSecrets"),
)
_CONTAINER = ("env", "volumeMounts", "securityContext")
_NAMED = ("volumes", "schedulingGates", "imagePullSecrets", "env")
"""Lists whose entries are merged by their names."""


def apply(
    container: conversion.Fields, spec: conversion.Fields, recorder: conversion.Recorder
) -> conversion.Fields:
    """Return a pod template with a container, as the patches of a TrainJob change it.

    Raises:
        load.SpecError: a patch has a field of a wrong type.
    """
    pod: conversion.Fields = {}
    metadata: conversion.Fields = {}
    for field, patch in (*_overrides(spec, recorder), *_runtime_patches(spec, recorder)):
        patch = recorder.known(patch, ("metadata", "spec"), field, TrainJobDifference.UNKNOWN)
        field_of_pod = f"{field}.spec"
        fields = conversion.fields(patch.get("spec"), field_of_pod)
        fields = recorder.known(fields, _POD, field_of_pod, TrainJobDifference.UNKNOWN)
        if fields.pop("initContainers", None):
            recorder.note(f"{field_of_pod}.initContainers", TrainJobDifference.OTHER_TARGETS)
        for change in conversion.items(
            fields.pop("containers", None), f"{field_of_pod}.containers"
        ):
            if change.pop("name", None) == _NODE:
                known_fields = recorder.known(
                    change, _CONTAINER, f"{field_of_pod}.containers", TrainJobDifference.UNKNOWN
                )
                _merge(container, known_fields)
            else:
                recorder.note(f"{field_of_pod}.containers", TrainJobDifference.OTHER_TARGETS)
        _merge(pod, _without_gates_of_kueue(fields, field_of_pod, recorder))
        _merge(metadata, conversion.fields(patch.get("metadata"), f"{field}.metadata"))
    template = {"metadata": metadata} if metadata else {}
    return {**template, "spec": {**pod, "containers": [container]}}


def _overrides(
    spec: conversion.Fields, recorder: conversion.Recorder
) -> Iterator[tuple[str, conversion.Fields]]:
    """Yield the field and the value of each override of the pods that train."""
    for index, override in enumerate(conversion.items(spec.get(OVERRIDES), f"spec.{OVERRIDES}")):
        field = f"spec.{OVERRIDES}[{index}]"
        targets = conversion.items(override.pop("targetJobs", None), f"{field}.targetJobs")
        jobs = [str(target.get("name")) for target in targets]
        others = [job for job in jobs if job != _NODE]
        if others:
            recorder.note(field, TrainJobDifference.OTHER_TARGETS, ", ".join(others))
        if _NODE in jobs:
            yield field, override


def _runtime_patches(
    spec: conversion.Fields, recorder: conversion.Recorder
) -> Iterator[tuple[str, conversion.Fields]]:
    """Yield the field and the value of each patch of the pods that train."""
    for index, patch in enumerate(conversion.items(spec.get(PATCHES), f"spec.{PATCHES}")):
        if str(patch.get("manager")).startswith(_KUEUE):
            recorder.note(f"spec.{PATCHES}[{index}]", TrainJobDifference.QUEUE_PATCHES)
            continue
        field = f"spec.{PATCHES}[{index}].trainingRuntimeSpec.template"
        runtime = conversion.fields(patch.get("trainingRuntimeSpec"), field)
        job_set = conversion.fields(runtime.get("template"), field)
        _note_metadata(job_set, field, recorder)
        job_set_spec = conversion.fields(job_set.get("spec"), f"{field}.spec")
        field = f"{field}.spec.replicatedJobs"
        for job in conversion.items(job_set_spec.get("replicatedJobs"), field):
            if job.get("name") != _NODE:
                recorder.note(field, TrainJobDifference.OTHER_TARGETS, str(job.get("name")))
                continue
            job_template = conversion.fields(job.get("template"), field)
            _note_metadata(job_template, field, recorder)
            job_spec = conversion.fields(job_template.get("spec"), field)
            yield field, conversion.fields(job_spec.get("template"), field)


def _without_gates_of_kueue(
    fields: conversion.Fields, field: str, recorder: conversion.Recorder
) -> conversion.Fields:
    """Return the fields of a pod without gates that nobody would remove."""
    gates = conversion.items(fields.pop("schedulingGates", None), f"{field}.schedulingGates")
    kept = [gate for gate in gates if not str(gate.get("name")).startswith(_KUEUE)]
    if len(kept) < len(gates):
        recorder.note(f"{field}.schedulingGates", TrainJobDifference.QUEUE_PATCHES)
    return {**fields, "schedulingGates": kept} if kept else fields


def _note_metadata(template: conversion.Fields, field: str, recorder: conversion.Recorder) -> None:
    """Note that a patch changes a JobSet or a Job, which nothing here has."""
    if template.get("metadata"):
        recorder.note(f"{field}.metadata", TrainJobDifference.OTHER_TARGETS)


def _merge(fields: conversion.Fields, changes: conversion.Fields) -> None:
    """Change fields in place: mappings and named lists entry by entry, all else as a whole."""
    for key, change in changes.items():
        value = fields.get(key)
        if isinstance(value, dict) and isinstance(change, dict):
            fields[key] = {**value, **change}
        elif key in _NAMED and isinstance(value, list) and isinstance(change, list):
            fields[key] = _merge_named(value, change)
        elif key == "volumeMounts" and isinstance(value, list) and isinstance(change, list):
            fields[key] = _merge_named(value, change, by="mountPath")
        else:
            fields[key] = change


def _merge_named(entries: list[Any], changes: list[Any], by: str = "name") -> list[Any]:
    changed = [change.get(by) for change in changes if isinstance(change, dict)]
    kept = [
        entry for entry in entries if not (isinstance(entry, dict) and entry.get(by) in changed)
    ]
    return [*kept, *changes]
