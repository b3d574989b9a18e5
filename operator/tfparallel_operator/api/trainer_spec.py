"""`spec.trainer`: the program of the shipped trainer, and variables and volumes of its pods."""

from typing import Annotated

import pydantic

from tfparallel_operator.api import rules, trainer_rules
from tfparallel_trainer.contract import base, job_file

ObjectName = Annotated[str, pydantic.Field(min_length=1, max_length=253)]
Key = Annotated[str, pydantic.Field(min_length=1, max_length=253)]


class KeyReference(base.Model):
    """One key of a ConfigMap or a Secret in the job's namespace."""

    name: ObjectName
    """Name of the ConfigMap or Secret."""

    key: Key
    """One of its keys."""

    optional: bool = False
    """If true, the variable is not set if the key does not exist. If false, the pod waits for the
    key."""


class FieldReference(base.Model):
    """A field of the pod."""

    field_path: Annotated[str, pydantic.Field(min_length=1, max_length=253)]
    """Path of the field, such as metadata.name."""

    api_version: Annotated[str, pydantic.Field(max_length=253)] | None = None
    """API version of the path; absent: v1."""


class ResourceReference(base.Model):
    """A request or limit of a container."""

    resource: Annotated[str, pydantic.Field(min_length=1, max_length=253)]
    """The resource, such as limits.cpu."""

    container_name: Annotated[str, pydantic.Field(max_length=63)] | None = None
    """Name of the container; absent: tensorflow."""

    divisor: Annotated[int | str, rules.IntOrString()] | None = None
    """Unit of the value; absent: 1."""


class VariableSource(base.Model):
    """Where the value of a variable comes from. Set one of the fields."""

    secret_key_ref: KeyReference | None = None
    """A key of a Secret."""

    config_map_key_ref: KeyReference | None = None
    """A key of a ConfigMap."""

    field_ref: FieldReference | None = None
    """A field of the pod."""

    resource_field_ref: ResourceReference | None = None
    """A request or limit of a container."""


class Variable(base.Model):
    """An environment variable, as in a pod."""

    name: Annotated[str, pydantic.Field(min_length=1, max_length=253)]
    """Name of the variable. The names that the operator sets, such as TF_CONFIG, are refused."""

    value: Annotated[str, pydantic.Field(max_length=65_536)] | None = None
    """The value, in which $(NAME) stands for another variable of the container."""

    value_from: Annotated[VariableSource | None, trainer_rules.VARIABLE_SOURCE] = None
    """Where the value comes from; not with value. `tfparallel run` takes it from the job's file, or
    from the variable of the same name in its environment."""


class Reference(base.Model):
    """A ConfigMap or a Secret in the job's namespace."""

    name: ObjectName
    """Its name."""

    optional: bool = False
    """If true, no variables are set if it does not exist. If false, the pod waits for it."""


class Variables(base.Model):
    """All keys of a Secret or of a ConfigMap as variables, as in a pod."""

    prefix: Annotated[str, pydantic.Field(max_length=253)] = ""
    """Prefix of each variable's name, before the key."""

    secret_ref: Reference | None = None
    """A Secret. Set this or configMapRef."""

    config_map_ref: Reference | None = None
    """A ConfigMap. Set this or secretRef."""


class Volume(base.Model):
    """A claim, a ConfigMap or a Secret, mounted in every replica."""

    name: Annotated[str, pydantic.Field(max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the volume in the pods."""

    mount_path: Annotated[str, pydantic.Field(max_length=253, pattern="^(/[-A-Za-z0-9._]+)+$")]
    """The folder in the container, such as /data."""

    read_only: bool = False
    """If true, replicas cannot write there. ConfigMaps and Secrets are always read-only."""

    claim: ObjectName | None = None
    """Name of a PersistentVolumeClaim, or of one of spec.volumeClaimTemplates. `tfparallel run`
    uses a folder of the claim's name below its own."""

    config_map: ObjectName | None = None
    """Name of a ConfigMap; each of its keys becomes a file."""

    secret: ObjectName | None = None
    """Name of a Secret; each of its keys becomes a file."""


class Trainer(job_file.TrainerSpec):
    """The program of the shipped trainer, and variables and volumes of its pods."""

    env: Annotated[
        tuple[Annotated[Variable, trainer_rules.VARIABLE], ...], pydantic.Field(max_length=128)
    ] = ()
    """Variables of the container tensorflow of every replica. A variable of the same name in the
    template takes precedence."""

    env_from: Annotated[
        tuple[Annotated[Variables, trainer_rules.VARIABLES], ...], pydantic.Field(max_length=32)
    ] = ()
    """Secrets and ConfigMaps whose keys become variables of every replica. Variables of env, of the
    template and of the operator take precedence."""

    volumes: Annotated[
        tuple[Annotated[Volume, trainer_rules.VOLUME], ...],
        pydantic.Field(max_length=16),
        trainer_rules.VOLUMES,
    ] = ()
    """Data, settings and credentials to mount in every replica."""

    image_pull_secrets: Annotated[tuple[ObjectName, ...], pydantic.Field(max_length=16)] = ()
    """Names of Secrets for pulling images, in addition to those of the template."""
