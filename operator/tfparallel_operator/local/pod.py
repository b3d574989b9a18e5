"""The part of a pod that matters to a process, read from a manifest and checked."""

from collections.abc import Mapping
from typing import Any

import pydantic
from pydantic import alias_generators

from tfparallel_operator.api import load, names


class _Part(pydantic.BaseModel):
    """Fields that nothing here reads are let through: a cluster knows what they mean."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel, extra="ignore", frozen=True, strict=True
    )


class Variable(_Part):
    """A variable of the environment."""

    name: str
    value: str = ""
    value_from: Any = None


class Mount(_Part):
    """Where a volume is seen in the container."""

    name: str
    mount_path: str
    sub_path: str = ""
    sub_path_expr: str = ""


class Resources(_Part):
    """What the container may use; of it only the devices matter here."""

    limits: dict[str, Any] = pydantic.Field(default_factory=dict)


class Container(_Part):
    """A container; the one named tensorflow becomes the process."""

    name: str
    command: list[str] = pydantic.Field(default_factory=list)
    args: list[str] = pydantic.Field(default_factory=list)
    env: list[Variable] = pydantic.Field(default_factory=list)
    env_from: list[Any] = pydantic.Field(default_factory=list)
    volume_mounts: list[Mount] = pydantic.Field(default_factory=list)
    working_dir: str = ""
    resources: Resources = Resources()


class PodSpec(_Part):
    """The spec of a pod."""

    containers: list[Container] = pydantic.Field(default_factory=list)
    init_containers: list[Container] = pydantic.Field(default_factory=list)
    volumes: list[dict[str, Any]] = pydantic.Field(default_factory=list)
    termination_grace_period_seconds: int | None = None

    @property
    def trains(self) -> Container:
        """The container that the process is made from."""
        [found] = (container for container in self.containers if container.name == names.CONTAINER)
        return found

    @property
    def others(self) -> list[str]:
        """Names of the containers that do not run here."""
        found = [container.name for container in (*self.init_containers, *self.containers)]
        return [name for name in found if name != names.CONTAINER]


_REMEDIES = {
    "string_type": "put it in quotes",
    "model_type": "write fields, such as containers: [...]",
    "list_type": "write a list, such as [one, two]",
}


def parse(spec: Mapping[str, Any], field: str = "spec") -> PodSpec:
    """Read a pod's spec, which the job has in this field.

    Raises:
        SpecError: with a sentence for each field of a wrong type.
    """
    try:
        return PodSpec.model_validate(spec)
    except pydantic.ValidationError as error:
        raise load.SpecError(*(_sentence(fault, field) for fault in error.errors())) from error


def _sentence(fault: Any, field: str) -> str:
    path = ".".join((field, *map(str, fault["loc"])))
    if fault["type"] == "missing":
        return f"{path}: missing; it is required"
    remedy = _REMEDIES.get(fault["type"], fault["msg"].lower())
    return f"{path}: received {fault['input']!r}; {remedy}"
