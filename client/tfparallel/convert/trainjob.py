"""From a TrainJob of Kubeflow Trainer to a TFParallelJob: values in, values out."""

import re
from collections.abc import Mapping
from typing import Any

from tfparallel.convert import conversion, patches, template
from tfparallel.convert.trainjob_differences import TrainJobDifference
from tfparallel_operator.api import load, names, types

KIND = "TrainJob"
API_VERSION = "trainer.kubeflow.org/v1alpha1"

_CONTROLLER = "trainer.kubeflow.org/trainjob-controller"
_RUNTIME = "ClusterTrainingRuntime"
_MOVED = ("labels", "annotations")
_SPEC = (
    *("runtimeRef", "initializer", "trainer", "suspend", "managedBy", "activeDeadlineSeconds"),
    *(*_MOVED, patches.OVERRIDES, patches.PATCHES),
)
_TRAINER = ("image", "command", "args", "env", "numNodes", "resourcesPerNode", "numProcPerNode")
_ONE_PROCESS = ("auto", "cpu", "gpu", 1, "1")
_OLD_LABELS = ("jobset.sigs.k8s.io/", "trainer.kubeflow.org/")


def convert(document: Mapping[str, Any], *, write_defaults: bool) -> conversion.Converted:
    """Return a checked TFParallelJob that runs what the TrainJob runs.

    Args:
        document: the manifest of a TrainJob; it is not changed.
        write_defaults: whether TrainJob's defaults are written for fields that it leaves out.

    Raises:
        load.SpecError: the version is unknown, or the job leaves its image to the runtime.
    """
    api_version = document.get("apiVersion")
    if api_version != API_VERSION:
        raise load.SpecError(f"apiVersion: received {api_version!r}; write {API_VERSION}")
    recorder = conversion.Recorder()
    metadata = recorder.metadata(document.get("metadata"), TrainJobDifference.EXPORTED)
    if names.LABEL_QUEUE in metadata.get("labels", {}):
        recorder.note("metadata.labels", TrainJobDifference.QUEUE)
    for key in document:
        if key == "status":
            recorder.note(key, TrainJobDifference.EXPORTED)
        elif key not in ("apiVersion", "kind", "metadata", "spec"):
            recorder.note(key, TrainJobDifference.UNKNOWN)
    spec = recorder.known(
        conversion.fields(document.get("spec"), "spec"), _SPEC, "spec", TrainJobDifference.UNKNOWN
    )
    _move_labels(spec, metadata, recorder)
    job: conversion.Fields = {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": metadata,
        "spec": _spec(spec, str(metadata.get("name") or ""), recorder, write_defaults),
    }
    conversion.check(job)
    return conversion.Converted(job, tuple(recorder.notices))


def _move_labels(
    spec: conversion.Fields, metadata: conversion.Fields, recorder: conversion.Recorder
) -> None:
    """Move labels and annotations of the JobSet to the job, whose entries win."""
    for field in _MOVED:
        entries = conversion.fields(spec.pop(field, None), f"spec.{field}")
        if entries:
            recorder.note(f"spec.{field}", TrainJobDifference.LABELS)
            metadata[field] = {**entries, **metadata.get(field, {})}


def _spec(
    spec: conversion.Fields, job_name: str, recorder: conversion.Recorder, write_defaults: bool
) -> conversion.Fields:
    runtime = conversion.fields(spec.get("runtimeRef"), "spec.runtimeRef")
    recorder.note("spec.runtimeRef", TrainJobDifference.RUNTIME, str(runtime.get("name", "")))
    if "initializer" in spec:
        recorder.note("spec.initializer", TrainJobDifference.INITIALIZER)
    trainer = recorder.known(
        conversion.fields(spec.get("trainer"), "spec.trainer"),
        _TRAINER,
        "spec.trainer",
        TrainJobDifference.UNKNOWN,
    )
    role: conversion.Fields = {
        "replicas": _replicas(trainer, recorder),
        "template": _template(spec, trainer, runtime, recorder),
    }
    _note_pods(role["template"], job_name, recorder)
    converted: conversion.Fields = {}
    if spec.get("managedBy") == _CONTROLLER:
        recorder.note("spec.managedBy", TrainJobDifference.MANAGED_BY)
    elif "managedBy" in spec:
        converted["managedBy"] = spec["managedBy"]
    if policy := _run_policy(spec, recorder):
        converted["runPolicy"] = policy
    if role["replicas"] != 1:
        if write_defaults:
            converted["successPolicy"] = types.SuccessPolicy.ALL_WORKERS.value
        recorder.note(
            "spec.trainer.numNodes",
            TrainJobDifference.SUCCESS if write_defaults else TrainJobDifference.DEFAULT_SUCCESS,
        )
    return {**converted, "tfReplicaSpecs": {types.Role.WORKER.value: role}}


def _run_policy(spec: conversion.Fields, recorder: conversion.Recorder) -> conversion.Fields:
    policy: conversion.Fields = {
        key: spec[key] for key in ("activeDeadlineSeconds", "suspend") if key in spec
    }
    recorder.note("spec.runtimeRef", TrainJobDifference.RESTARTS)
    return policy


def _replicas(trainer: conversion.Fields, recorder: conversion.Recorder) -> Any:
    if trainer.get("numProcPerNode", 1) not in _ONE_PROCESS:
        processes = str(trainer["numProcPerNode"])
        recorder.note("spec.trainer.numProcPerNode", TrainJobDifference.PROCESSES, processes)
    if "numNodes" not in trainer:
        recorder.note("spec.trainer.numNodes", TrainJobDifference.NUM_NODES)
    return trainer.get("numNodes", 1)


def _template(
    spec: conversion.Fields,
    trainer: conversion.Fields,
    runtime: conversion.Fields,
    recorder: conversion.Recorder,
) -> conversion.Fields:
    missing = [key for key in ("image", "command") if not trainer.get(key)]
    if "image" in missing:
        kind, name = str(runtime.get("kind", _RUNTIME)).lower(), runtime.get("name", "NAME")
        raise load.SpecError(
            "spec.trainer.image: missing; write the image of the runtime, which"
            f" kubectl get {kind} {name} -o yaml shows"
        )
    if missing:
        recorder.note("spec.trainer.command", TrainJobDifference.RUNTIME, "absent command")
    recorder.note("spec.trainer", TrainJobDifference.VARIABLES)
    container = {"name": names.CONTAINER} | {
        key: trainer[key] for key in ("image", "command", "args", "env") if key in trainer
    }
    if "resourcesPerNode" in trainer:
        container["resources"] = trainer["resourcesPerNode"]
    return patches.apply(container, spec, recorder)


def _note_pods(
    pod_template: conversion.Fields, job_name: str, recorder: conversion.Recorder
) -> None:
    """Note what in a template depends on names and labels of the TrainJob's pods."""
    field = "spec.trainer"
    texts = list(template.texts(pod_template))
    if any(text.startswith(_OLD_LABELS) for text in texts):
        recorder.note(field, TrainJobDifference.POD_LABELS)
    address = re.compile(rf"(?<![\w.-]){re.escape(job_name)}-node-\d+-\d+\b")
    named = [match[0] for text in texts if (match := address.search(text))]
    if job_name and named:
        recorder.note(field, TrainJobDifference.ADDRESSES, named[0])


def mentions_labels(document: Mapping[str, Any]) -> bool:
    """Whether an object that is not the Trainer's own names a label of a TrainJob's pods."""
    if str(document.get("apiVersion")).startswith(_OLD_LABELS):
        return False
    return any(text.startswith(_OLD_LABELS) for text in template.texts(document))
