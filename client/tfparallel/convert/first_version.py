"""The first version of TFJob, with a list of roles: to the fields of kubeflow.org/v1."""

from collections.abc import Mapping
from typing import Any

from tfparallel.convert import conversion
from tfparallel.convert.tfjob_differences import TFJobDifference
from tfparallel_operator.api import load, names, types

API_VERSIONS = ("kubeflow.org/v1alpha1", "tensorflow.org/v1alpha1", "mlkube.io/v1beta1")
"""The same fields, from the newest to the oldest."""

_SPEC = ("replicaSpecs", "terminationPolicy")
_REPLICA = ("replicas", "template", "tfReplicaType", "tfPort")
_DEFAULT_TYPE = "MASTER"
_ALWAYS = types.RestartPolicy.ALWAYS.value


def convert(
    document: Mapping[str, Any], recorder: conversion.Recorder, *, write_defaults: bool
) -> conversion.Fields:
    """Return the TFJob with a map of roles instead of the list.

    Raises:
        load.SpecError: the list has a role twice, or an entry that is no role.
    """
    spec = recorder.known(
        conversion.fields(document.get("spec"), "spec"), _SPEC, "spec", TFJobDifference.OLD_FIELDS
    )
    roles: conversion.Fields = {}
    for index, entry in enumerate(conversion.items(spec.get("replicaSpecs"), "spec.replicaSpecs")):
        field = f"spec.replicaSpecs[{index}]"
        key = str(entry.get("tfReplicaType") or _DEFAULT_TYPE)
        key = key if key == types.Role.PS else key.capitalize()
        if key in roles:
            raise load.SpecError(f"{field}.tfReplicaType: {key} is given twice; join the entries")
        roles[key] = _role(entry, field, recorder, write_defaults=write_defaults)
    if roles:
        recorder.note("spec.replicaSpecs", TFJobDifference.REPLICA_LIST)
    _check_termination(spec.get("terminationPolicy"), roles, recorder)
    return {**document, "spec": {"tfReplicaSpecs": roles}}


def _role(
    entry: conversion.Fields, field: str, recorder: conversion.Recorder, *, write_defaults: bool
) -> conversion.Fields:
    role = recorder.known(entry, _REPLICA, field, TFJobDifference.OLD_FIELDS)
    role.pop("tfReplicaType", None)
    port = role.pop("tfPort", None)
    template = conversion.fields(role.get("template"), f"{field}.template")
    pod = conversion.fields(template.get("spec"), f"{field}.template.spec")
    policy = pod.pop("restartPolicy", _ALWAYS if write_defaults else None)
    if policy is not None:
        role["restartPolicy"] = policy
    if port is not None:
        containers = conversion.items(pod.get("containers"), f"{field}.template.spec.containers")
        pod["containers"] = [_with_port(container, port) for container in containers]
    if template:
        role["template"] = {**template, "spec": pod}
    return role


def _with_port(container: conversion.Fields, number: Any) -> conversion.Fields:
    """Return the container that trains with TensorFlow's port, and others as they are."""
    if container.get("name") != names.CONTAINER or number == names.DEFAULT_PORT:
        return container
    ports = [port for port in container.get("ports") or [] if port.get("containerPort") != number]
    return {**container, "ports": [*ports, {"name": names.PORT_NAME, "containerPort": number}]}


def _check_termination(value: Any, roles: conversion.Fields, recorder: conversion.Recorder) -> None:
    """Note a replica that decides about the end and is not the one that decides here."""
    field = "spec.terminationPolicy"
    chief = conversion.fields(conversion.fields(value, field).get("chief"), f"{field}.chief")
    if not chief:
        return
    decides = types.Role.MASTER if types.Role.MASTER in roles else types.Role.WORKER
    name = str(chief.get("replicaName", "")).capitalize()
    if (name, chief.get("replicaIndex", 0)) != (decides.value, 0):
        recorder.note(field, TFJobDifference.TERMINATION_POLICY)
