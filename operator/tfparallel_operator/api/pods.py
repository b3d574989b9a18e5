"""The part of a pod template that the operator reads or changes. The API server checks the rest."""

from typing import Any

import pydantic
from pydantic import alias_generators

from tfparallel_operator.api import names


class _Part(pydantic.BaseModel):
    """A model that ignores other fields."""

    model_config = pydantic.ConfigDict(
        alias_generator=alias_generators.to_camel, extra="ignore", frozen=True, strict=True
    )


class EnvVar(_Part):
    """An environment variable."""

    name: str
    value: str = ""
    value_from: Any = None


class Mount(_Part):
    """A mount of a volume."""

    name: str
    mount_path: str
    read_only: bool = False
    sub_path: str = ""
    sub_path_expr: str = ""


class Port(_Part):
    """A port of a container."""

    name: str = ""
    container_port: int


class Resources(_Part):
    """Requests and limits of a container."""

    requests: dict[str, Any] | None = None
    limits: dict[str, Any] = pydantic.Field(default_factory=dict)
    claims: list[dict[str, Any]] | None = None


class Container(_Part):
    """A container. The one named tensorflow trains."""

    name: str
    image: str = ""
    command: list[str] = pydantic.Field(default_factory=list)
    args: list[str] = pydantic.Field(default_factory=list)
    env: list[EnvVar] = pydantic.Field(default_factory=list)
    env_from: list[Any] = pydantic.Field(default_factory=list)
    ports: list[Port] = pydantic.Field(default_factory=list)
    volume_mounts: list[Mount] = pydantic.Field(default_factory=list)
    working_dir: str = ""
    resources: Resources = Resources()
    security_context: dict[str, Any] | None = None
    termination_message_path: str | None = None


class NodeSelectorTerm(_Part):
    """Requirements that a node meets together."""

    match_fields: list[dict[str, Any]] | None = None


class NodeSelector(_Part):
    """Terms, one of which a node has to match."""

    node_selector_terms: list[NodeSelectorTerm] | None = None


class NodeAffinity(_Part):
    """Which nodes a pod may have."""

    required_during_scheduling_ignored_during_execution: NodeSelector | None = None


class Affinity(_Part):
    """Near what a pod is to be."""

    node_affinity: NodeAffinity | None = None


class PodSpec(_Part):
    """The spec of a pod."""

    containers: list[Container] = pydantic.Field(default_factory=list)
    init_containers: list[Container] = pydantic.Field(default_factory=list)
    volumes: list[dict[str, Any]] = pydantic.Field(default_factory=list)
    termination_grace_period_seconds: int | None = None
    affinity: Affinity | None = None
    image_pull_secrets: list[dict[str, Any]] | None = None
    node_selector: dict[str, str] | None = None
    priority_class_name: str | None = None
    resource_claims: list[dict[str, Any]] | None = None
    scheduler_name: str | None = None
    scheduling_gates: list[dict[str, Any]] | None = None
    security_context: dict[str, Any] | None = None
    tolerations: list[dict[str, Any]] | None = None

    @property
    def trains(self) -> Container:
        """The container named tensorflow."""
        [trainer] = (
            container for container in self.containers if container.name == names.CONTAINER
        )
        return trainer

    @property
    def others(self) -> list[str]:
        """Names of the other containers."""
        container_names = [
            container.name for container in (*self.init_containers, *self.containers)
        ]
        return [name for name in container_names if name != names.CONTAINER]


class TemplateMetadata(_Part):
    """Metadata of the pods of a template."""

    labels: dict[str, str] | None = None
    annotations: dict[str, str] | None = None


class Template(_Part):
    """A pod template."""

    metadata: TemplateMetadata = TemplateMetadata()
    spec: PodSpec = PodSpec()
