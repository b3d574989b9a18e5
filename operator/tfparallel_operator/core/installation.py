"""Settings of the installation that apply to every job."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import types

SETTLING = datetime.timedelta(seconds=10)
"""How long to wait for the exit of a lost peer, after another replica has reported the loss."""

HOST_PORTS_OF_NAMESPACE = 2_000
"""Maximum number of ports of nodes, of 20,000, for the jobs of one namespace."""

SHARE_ABOVE = 64
"""Number of replicas above which the pods share one copy of the cluster, because a copy in each pod
would be larger."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gangs:
    """Settings of the installation for gangs."""

    scheduler: types.GangScheduler | None = None
    """The gang scheduler of jobs that have a scheduling policy and name no scheduler."""
    coscheduling_name: str = "scheduler-plugins-scheduler"
    """Name of the scheduler that has the plugin Coscheduling."""


class HostAccess(enum.StrEnum):
    """Whether jobs may access their nodes."""

    ALLOWED = "Allowed"
    FORBIDDEN = "Forbidden"


@dataclasses.dataclass(frozen=True, slots=True)
class Restrictions:
    """What jobs may use of their namespace and their nodes. By default, they may use everything."""

    service_accounts: tuple[str, ...] = ()
    """The service accounts that pods may have; empty: any."""
    host_access: HostAccess = HostAccess.ALLOWED
    secret_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Labels that a Secret needs before a job may name it; empty: none."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstallationSettings:
    """Settings of the installation that apply to every job."""

    trainer_image: str
    """Image of replicas whose template names none."""
    progress_url: str | None = None
    """Address of the progress endpoint without the job's path; None: pods report no progress."""
    progress_ca: str | None = None
    """Certificates (PEM) by which pods trust the progress endpoint; None: the system's."""
    first_pause: datetime.timedelta = datetime.timedelta(seconds=10)
    """Pause before the second restart after a failure. Each further pause is twice as long."""
    settling: datetime.timedelta = SETTLING
    """How long to wait for signs that the cluster took a replica, before a loss ends the job."""
    share_above: int | None = SHARE_ABOVE
    """Number of replicas above which the pods share the cluster in the ConfigMap; None: never."""
    listening_since: datetime.datetime | None = None
    """Since when this operator accepts reports of progress. Earlier silence says nothing."""
    gangs: Gangs | None = None
    """Gang schedulers; None: no scheduler runs here, so all pods start at once."""
    queues: bool = False
    """Whether jobs with the label of a queue wait for Kueue."""
    trainer_pull_secrets: tuple[str, ...] = ()
    """Secrets for pulling the trainer's image, for pods whose template has none."""
    host_ports_of_namespace: int = HOST_PORTS_OF_NAMESPACE
    """Maximum number of ports of nodes for the jobs of one namespace."""
    installation: str = ""
    """Name of this installation among others in the cluster; empty: there are no others."""
    pod_defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """A pod template. Its fields fill in what the templates of jobs leave out."""
    restrictions: Restrictions = Restrictions()
