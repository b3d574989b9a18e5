"""Variables that a user adds to a job, and Secrets whose keys become variables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import names


def add(
    job: Mapping[str, Any], variables: Mapping[str, str], secrets: Sequence[str]
) -> Mapping[str, Any]:
    """Return a job whose containers that train have variables, in place of those of their names.

    Args:
        job: a manifest; it is not changed.
        variables: values by name.
        secrets: names of Secrets; each of their keys becomes a variable.
    """
    if not variables and not secrets:
        return job
    entries = [{"name": name, "value": value} for name, value in variables.items()]
    sources = [{"secretRef": {"name": secret}} for secret in secrets]
    spec = job["spec"]
    if "trainer" in spec:
        return {**job, "spec": {**spec, "trainer": _extend(spec["trainer"], entries, sources)}}
    roles = {role: _in_role(fields, entries, sources) for role, fields in _items(spec)}
    return {**job, "spec": {**spec, "tfReplicaSpecs": roles}}


def _items(spec: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    for role, fields in (spec.get("tfReplicaSpecs") or {}).items():
        yield role, fields or {}


def _in_role(
    role: Mapping[str, Any], entries: Sequence[Any], sources: Sequence[Any]
) -> Mapping[str, Any]:
    template = role.get("template") or {}
    pod = template.get("spec") or {}
    containers = [
        _extend(container, entries, sources)
        if container.get("name") == names.CONTAINER
        else container
        for container in pod.get("containers") or ()
    ]
    return {**role, "template": {**template, "spec": {**pod, "containers": containers}}}


def _extend(
    fields: Mapping[str, Any], entries: Sequence[Mapping[str, Any]], sources: Sequence[Any]
) -> Mapping[str, Any]:
    """Return `spec.trainer` or a container with more variables."""
    replaced = {entry["name"] for entry in entries}
    kept = [entry for entry in fields.get("env") or () if entry.get("name") not in replaced]
    extended = {**fields, "env": [*kept, *entries]}
    if sources:
        extended["envFrom"] = [*(fields.get("envFrom") or ()), *sources]
    return {key: value for key, value in extended.items() if key != "env" or value}
