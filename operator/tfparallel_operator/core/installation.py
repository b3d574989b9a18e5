"""What the installation decides for every job."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import types

SETTLING = datetime.timedelta(seconds=10)
"""How long the exit of a replica that lost a peer waits for the peer's own to be seen."""

HOST_PORTS_OF_NAMESPACE = 2_000
"""Ports of nodes that the jobs of a namespace may have, of 20,000 that there are."""

SHARE_ABOVE = 64
"""Replicas beyond which a copy of the cluster in each pod is more than one for all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gangs:
    """What the installation decides about gangs."""

    scheduler: types.GangScheduler | None = None
    """Who starts the gangs of jobs that have a scheduling policy and name no scheduler."""
    coscheduling_name: str = "scheduler-plugins-scheduler"
    """The scheduler that has the plugin Coscheduling, as pods name it."""


class HostAccess(enum.StrEnum):
    """Whether jobs may reach into their nodes."""

    ALLOWED = "Allowed"
    FORBIDDEN = "Forbidden"


@dataclasses.dataclass(frozen=True, slots=True)
class Restrictions:
    """What jobs may use of their namespace and their nodes; by default anything."""

    service_accounts: tuple[str, ...] = ()
    """The service accounts that pods may have; empty: any."""
    host_access: HostAccess = HostAccess.ALLOWED
    secret_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What a Secret needs before a job may name it; empty: nothing."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What the installation decides for every job."""

    trainer_image: str
    """Image of replicas that have no template."""
    progress_url: str | None = None
    """Address of the progress endpoint without the job's path; absent: nothing is reported."""
    progress_ca: str | None = None
    """Certificates (PEM) that the progress endpoint is trusted by; absent: the system's."""
    first_pause: datetime.timedelta = datetime.timedelta(seconds=10)
    """How long the second restart after a failure waits; each further one twice as long."""
    settling: datetime.timedelta = SETTLING
    """How long a decision that ends a job waits for signs that the cluster took a replica."""
    share_above: int | None = SHARE_ABOVE
    """Replicas of a job beyond which all share the cluster in its ConfigMap; None: never."""
    listening_since: datetime.datetime | None = None
    """Since when reports of progress are taken: silence before says nothing."""
    gangs: Gangs | None = None
    """Who starts pods together; absent: nothing schedules here, all pods start at once."""
    queues: bool = False
    """Whether jobs with the label of a queue wait for Kueue."""
    trainer_pull_secrets: tuple[str, ...] = ()
    """Secrets that pull the trainer's image, for pods whose template has none."""
    host_ports_of_namespace: int = HOST_PORTS_OF_NAMESPACE
    """Ports of nodes that the jobs of a namespace may have at once."""
    installation: str = ""
    """Name of this installation among others in the cluster; empty: there are no others."""
    pod_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """A pod template: what it has, pods have where the template of their job is silent."""
    restrictions: Restrictions = Restrictions()
