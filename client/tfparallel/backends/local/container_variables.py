"""The variables of a container, from its spec, from objects of the job's file, or from the
environment."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tfparallel.job_source import key_maps
from tfparallel_operator.api import load, pods, trainer_rules
from tfparallel_operator.core.pods import expansion

_REFERENCES = {
    "configMapKeyRef": key_maps.ObjectKind.CONFIG_MAP,
    "configMapRef": key_maps.ObjectKind.CONFIG_MAP,
    "secretKeyRef": key_maps.ObjectKind.SECRET,
    "secretRef": key_maps.ObjectKind.SECRET,
}


_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclasses.dataclass(frozen=True, slots=True)
class Sources:
    """Sources of values that a container's spec does not contain."""

    objects: Mapping[key_maps.ObjectKind, key_maps.KeyMaps]
    """Objects in the job's file."""
    environment: Mapping[str, str]
    """The environment of `tfparallel run`."""
    overrides: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Variables of this run, which take precedence over the container's."""


def resolve(container: pods.Container, sources: Sources) -> dict[str, str]:
    """Return the container's variables by name. Each may use the variables before it.

    Raises:
        SpecError: a value is missing everywhere.
    """
    variables: dict[str, str] = {}
    for entry in container.env_from:
        variables |= _all_keys(entry, sources)
    variables |= sources.overrides
    for variable in container.env:
        value: str | None = expansion.expand(variable.value, variables)
        if variable.name in sources.overrides:
            value = sources.overrides[variable.name]
        elif variable.value_from is not None:
            value = _value(variable.name, variable.value_from, sources)
        if value is not None:
            variables[variable.name] = value
    return {**variables, **sources.overrides}


def parse_overrides(
    assignments: Sequence[str], files: Sequence[pathlib.Path], environment: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables of `--env` and `--env-file`: NAME=VALUE, or NAME of the environment.

    Args:
        assignments: those of `--env`, which win.
        files: those of `--env-file`, with an assignment a line; later ones win.
        environment: the variables of `tfparallel run`.

    Raises:
        SpecError: with a sentence for each problem.
    """
    placed = [line for file in files for line in _assignments_of(file)]
    placed += [(f"--env {assignment.partition('=')[0]}", assignment) for assignment in assignments]
    variables, problems = {}, []
    for origin, assignment in placed:
        name, equals, value = assignment.partition("=")
        if not _NAME.fullmatch(name):
            problems.append(f"{origin}: received the name {name!r}; write NAME=VALUE")
        elif name in trainer_rules.RESERVED_VARIABLES:
            problems.append(f"{origin}: the operator sets {name}; remove it")
        elif not equals and name not in environment:
            problems.append(f"{origin}: {name} is not set here; write {name}=VALUE, or set it")
        else:
            variables[name] = value if equals else environment[name]
    if problems:
        raise load.SpecError(*problems)
    return variables


def _assignments_of(file: pathlib.Path) -> Iterator[tuple[str, str]]:
    """Yield the position and the text of each assignment in a file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        raise load.SpecError(f"--env-file {file}: {reason}; give a file of NAME=VALUE") from error
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield f"--env-file {file}:{number}", line.lstrip()


def _all_keys(entry: Mapping[str, Any], sources: Sources) -> dict[str, str]:
    """Return the variables of an entry of envFrom."""
    for field, kind in _REFERENCES.items():
        reference = entry.get(field)
        if reference is None:
            continue
        name = reference.get("name")
        key_map = sources.objects[kind].get(name)
        if key_map is None and not reference.get("optional"):
            raise load.SpecError(
                f"envFrom: {kind} {name!r} is not in the job's file; add it there after a line with"
                " ---, or set optional to true and use --env-file"
            )
        prefix = entry.get("prefix") or ""
        keys = {f"{prefix}{key}": value for key, value in (key_map or {}).items()}
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
        text = sources.objects[kind].get(reference.get("name"), {}).get(reference.get("key"))
        if text is not None:
            return _text(described, name, text)
        if reference.get("optional"):
            return sources.environment.get(name)
    if name in sources.environment:
        return sources.environment[name]
    raise load.SpecError(
        f"env {name}: valueFrom is {described}, which is not in the job's file; pass the value by"
        f" --env {name}=VALUE or --env-file"
    )


def _text(source: str, name: str, value: str | bytes) -> str:
    if isinstance(value, bytes):
        raise load.SpecError(f"env {name}: {source} is not text; mount it as a file")
    return value
