"""`spec.volumeClaimTemplates`: claims that the operator creates for a job, as in StatefulSets."""

import enum
from typing import Annotated

import pydantic

from tfparallel_operator.api import rules
from tfparallel_trainer.contract import base

MAX_TEMPLATES = 8

_Text = Annotated[str, pydantic.Field(max_length=253)]


class AccessMode(enum.StrEnum):
    """Which pods may mount a volume at the same time."""

    READ_WRITE_ONCE = "ReadWriteOnce"
    """All pods of one node."""
    READ_ONLY_MANY = "ReadOnlyMany"
    READ_WRITE_MANY = "ReadWriteMany"
    """All pods of all nodes."""
    READ_WRITE_ONCE_POD = "ReadWriteOncePod"
    """One pod."""


class VolumeMode(enum.StrEnum):
    """What a volume is."""

    FILESYSTEM = "Filesystem"
    BLOCK = "Block"


class ClaimMetadata(base.Model):
    """Name, labels and annotations of a claim."""

    name: Annotated[str, pydantic.Field(max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the template. The claim's name is <job>-<name>."""

    labels: Annotated[dict[str, _Text], pydantic.Field(max_length=32)] = pydantic.Field(
        default_factory=dict
    )
    """Labels of the claim, in addition to the operator's."""

    annotations: Annotated[
        dict[str, Annotated[str, pydantic.Field(max_length=4096)]], pydantic.Field(max_length=32)
    ] = pydantic.Field(default_factory=dict)
    """Annotations of the claim."""


class StorageRequest(base.Model):
    """The storage that a claim requests."""

    storage: Annotated[int | str, rules.IntOrString()]
    """The amount, such as 10Gi."""


class ClaimResources(base.Model):
    """The resources of a claim."""

    requests: StorageRequest
    """The storage that it requests."""


class ClaimSpec(base.Model):
    """The spec of a claim."""

    access_modes: Annotated[tuple[AccessMode, ...], pydantic.Field(min_length=1, max_length=4)]
    """Which pods may mount the volume: ReadWriteOnce for replicas on one node, ReadWriteMany for
    replicas on several."""

    storage_class_name: _Text | None = None
    """The StorageClass; absent: the cluster's default. Empty: a volume without a class."""

    resources: ClaimResources
    """The storage that the claim requests."""

    volume_mode: VolumeMode | None = None
    """Filesystem or Block; absent: Filesystem, which the trainer needs."""


class ClaimTemplate(base.Model):
    """A PersistentVolumeClaim that the operator creates for the job."""

    metadata: ClaimMetadata
    """Name, labels and annotations of the claim."""

    spec: ClaimSpec
    """The spec of the claim."""


class WhenDeleted(enum.StrEnum):
    """What happens to the claims when the job is deleted."""

    RETAIN = "Retain"
    DELETE = "Delete"


class RetentionPolicy(base.Model):
    """How long the claims of volumeClaimTemplates live."""

    when_deleted: WhenDeleted = WhenDeleted.RETAIN
    """What happens to the claims when the job is deleted. Retain keeps them, and the next job of
    this name uses them. Delete deletes them and their data with the job."""


ClaimTemplates = Annotated[
    tuple[ClaimTemplate, ...],
    pydantic.Field(max_length=MAX_TEMPLATES),
    rules.Rules(
        rules.Rule(
            "self.all(one, self.exists_one(other, other.metadata.name == one.metadata.name))",
            "two of volumeClaimTemplates have one name: give each its own",
        ),
    ),
]
"""The claims of a job."""
