"""Variables that a user adds to a job, and Secrets whose keys become variables."""

import functools
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import names

Container = Mapping[str, Any]


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
    extend = functools.partial(_extend, entries=entries, sources=sources)
    spec = dict(job["spec"])
    if spec.get("trainer") is None:
        spec["tfReplicaSpecs"] = _change_containers(spec, extend)
    else:
        # A variable of a template goes before one of the trainer.
        drop = functools.partial(_drop, variables=variables)
        spec |= {
            "trainer": extend(spec["trainer"]),
            "tfReplicaSpecs": _change_containers(spec, drop),
        }
    return {**job, "spec": spec}


def _change_containers(
    spec: Mapping[str, Any], change: Callable[[Container], Container]
) -> Mapping[str, Any]:
    """Return the roles with their containers that train replaced, if they have templates."""
    roles = spec.get("tfReplicaSpecs") or {}
    return {role: change_container(fields or {}, change) for role, fields in roles.items()}


def change_container(
    role: Mapping[str, Any], change: Callable[[Container], Container]
) -> Mapping[str, Any]:
    """Return a role with its container that trains replaced, if it has a template."""
    template = role.get("template") or {}
    pod = template.get("spec") or {}
    if not pod.get("containers"):
        return role
    containers = [
        change(container) if container.get("name") == names.CONTAINER else container
        for container in pod["containers"]
    ]
    return {**role, "template": {**template, "spec": {**pod, "containers": containers}}}


def _drop(container: Container, variables: Collection[str]) -> Container:
    """Return a container without its values of these variables."""
    if "env" not in container:
        return container
    kept = [entry for entry in container["env"] or () if entry.get("name") not in variables]
    return {**container, "env": kept}


def _extend(
    fields: Container, entries: Sequence[Mapping[str, Any]], sources: Sequence[Any]
) -> Container:
    """Return `spec.trainer` or a container with more variables."""
    extended = {**fields}
    if entries:
        others = _drop({"env": (), **fields}, {entry["name"] for entry in entries})
        extended["env"] = [*others["env"], *entries]
    if sources:
        extended["envFrom"] = [*(fields.get("envFrom") or ()), *sources]
    return extended
