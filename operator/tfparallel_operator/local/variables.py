"""The variables of a container: written, or taken from objects of the job's file or from here."""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import load, pods
from tfparallel_operator.local import key_maps, text

_REFERENCES = {
    "configMapKeyRef": key_maps.Kind.CONFIG_MAP,
    "configMapRef": key_maps.Kind.CONFIG_MAP,
    "secretKeyRef": key_maps.Kind.SECRET,
    "secretRef": key_maps.Kind.SECRET,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Where values come from that a container does not write itself."""

    objects: Mapping[key_maps.Kind, key_maps.KeyMaps]
    """What the job's file brings."""
    environment: Mapping[str, str]
    """The variables of `tfparallel run`."""


def resolve(container: pods.Container, sources: Sources) -> dict[str, str]:
    """Return the container's variables by name, each filled in from those before it.

    Raises:
        SpecError: a value is nowhere to be found.
    """
    variables: dict[str, str] = {}
    for entry in container.env_from:
        variables |= _all_keys(entry, sources)
    for variable in container.env:
        value: str | None = text.expand(variable.value, variables)
        if variable.value_from is not None:
            value = _value(variable.name, variable.value_from, sources)
        if value is not None:
            variables[variable.name] = value
    return variables


def _all_keys(entry: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Return the variables of an entry of envFrom."""
    for field, kind in _REFERENCES.items():
        reference = entry.get(field)
        if reference is None:
            continue
        name = reference.get("name")
        found = sources.objects[kind].get(name)
        if found is None and not reference.get("optional"):
            raise load.SpecError(
                f"envFrom: {kind} {name!r} is not in the job's file; add it there after a line with"
                " ---, or set optional to true and its variables in the environment of tfparallel"
                " run, which replicas inherit"
            )
        prefix = entry.get("prefix") or ""
        keys = {f"{prefix}{key}": value for key, value in (found or {}).items()}
        return {key: _text(f"{kind} {name!r}", key, value) for key, value in keys.items()}
    raise load.SpecError(f"envFrom: received {entry!r}; give a secretRef or a configMapRef")


def _value(name: str, value_from: Mapping[str, Any], sources: Sources) -> str | None:
    """Return the value of a variable with valueFrom; None if it may be absent, and is."""
    described = next(iter(value_from), "nothing")
    for field, kind in _REFERENCES.items():
        reference = value_from.get(field)
        if reference is None:
            continue
        described = f"key {reference.get('key')!r} of {kind} {reference.get('name')!r}"
        found = sources.objects[kind].get(reference.get("name"), {}).get(reference.get("key"))
        if found is not None:
            return _text(described, name, found)
        if reference.get("optional"):
            return sources.environment.get(name)
    if name in sources.environment:
        return sources.environment[name]
    raise load.SpecError(
        f"env {name}: valueFrom is {described}, which is not in the job's file; set {name} in the"
        " environment of tfparallel run, or give it a value"
    )


def _text(source: str, name: str, value: str | bytes) -> str:
    if isinstance(value, bytes):
        raise load.SpecError(f"env {name}: {source} is not text; mount it as a file")
    return value
