"""The observed state of a job's children and of its cluster, as small values."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout
from tfparallel_trainer.contract import agents


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return a time of an object; None: it is absent or invalid.

    The API server stores times beyond the year 9999, and some writers leave out the zone.
    """
    try:
        time = datetime.datetime.fromisoformat(text or "")
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


class Phase(enum.StrEnum):
    """The phase of a pod. The exit of the container tensorflow decides, not that of sidecars."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether no container of the pod will run again."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How the container tensorflow, or the pod before it, ended."""

    code: int
    """Exit code; -1: the container did not exit, for example because its pod was evicted."""
    reason: str
    """The kubelet's reason: Completed, Error, OOMKilled, Evicted."""
    message: str
    finished_at: datetime.datetime | None
    of_source: bool = False
    """Whether the init container that fetches the source has exited."""
    restarted: bool = False
    """Whether the kubelet has restarted the container since, by a restartPolicy in the template."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the job (matched by owner uid)."""

    name: str
    uid: str
    replica: replicas.Replica
    attempt: int
    """The job's attempt in which the pod was created (label)."""
    replica_attempt: int
    """The replica's restarts within that attempt (label)."""
    phase: Phase
    deleting: bool = False
    """Whether it has a deletion timestamp."""
    hidden: bool = False
    """Whether the pod has lost the label by which the operator watches pods."""
    delete_by: datetime.datetime | None = None
    """When the pod's grace period ends, if it is being deleted."""
    node: str = ""
    """The node of the pod."""
    unschedulable_since: datetime.datetime | None = None
    """Since when the scheduler has found no node for the pod."""
    scheduled_at: datetime.datetime | None = None
    """When the pod got its node."""
    started_at: datetime.datetime | None = None
    """When the container tensorflow started."""
    disrupted: bool = False
    """Whether the cluster ends the pod: its condition DisruptionTarget is true."""
    reason: str = ""
    """The reason in the pod's status, such as Evicted, or else of DisruptionTarget, such as
    PreemptionByScheduler."""
    message: str = ""
    """The message that belongs to the reason."""
    exit: Exit | None = None
    lingers: bool = False
    """Whether the pod has ended but a sidecar still runs and holds the pod's resources."""
    finalizers: tuple[str, ...] = ()
    """The finalizers of a pod that is being deleted. Only their controllers can end it."""
    waiting: str = ""
    """Why the pod is pending, in the words of the scheduler, the kubelet, an Event or its claim."""
    agent: str = ""
    """Fingerprint of what a pod with an agent was built from; empty: it has none."""
    ended_run: agents.Run | None = None
    """The run that has ended in the pod, if its agent waits for another one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """A PodGroup of the job, of any gang scheduler."""

    api_version: str
    """The gang scheduler of the group."""
    name: str
    uid: str
    spec: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PodSetAdmission:
    """Where Kueue lets the pods of a role run."""

    flavors: tuple[str, ...] = ()
    """The ResourceFlavors whose quota the pods use."""
    updates: tuple[Mapping[str, Any], ...] = ()
    """Additions of admission checks to the pods: labels, annotations, nodeSelector, tolerations."""
    placed: bool = False
    """Whether Kueue itself chooses the node of each pod (topology-aware scheduling)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """A ResourceFlavor of Kueue, with the nodes that it represents."""

    node_labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """A Workload of Kueue that the job owns."""

    name: str
    uid: str
    version: str
    """The resource version of the Workload."""
    queue: str
    priority_class: str
    """The WorkloadPriorityClass; empty: none."""
    counts: Mapping[str, int]
    """Number of pods by pod set."""
    resources: str = ""
    """Hashes of the resources and of the placement that the pods request, as the job wrote them.

    An older release may not have written all of them.
    """
    active: bool = True
    """False: somebody has stopped the Workload."""
    deleting: bool = False
    conditions: tuple[Mapping[str, Any], ...] = ()
    """The conditions of the Workload, as JSON."""
    cluster_queue: str = ""
    """The ClusterQueue that has reserved quota."""
    admission: Mapping[str, PodSetAdmission] = dataclasses.field(default_factory=dict)
    """The reserved quota by pod set."""
    reclaimable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Number of pods whose quota the job has released, by pod set."""
    pending_checks: tuple[str, ...] = ()
    """What the Workload waits for, as the admission checks say."""


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """The ConfigMap of the job."""

    name: str
    uid: str
    fingerprint: str
    """Fingerprint of the values from which the content was built."""
    installation: str = ""
    """The installation of the operator that acts on the job; empty: an older version wrote it."""
    question: str = ""
    """The question of another installation; see `core.life.installations`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Children:
    """The objects that a job owns, as last observed."""

    pods: tuple[Pod, ...] = ()
    has_service: bool = False
    config: Config | None = None
    """The ConfigMap."""
    has_policy: bool = False
    """Whether the NetworkPolicy exists."""
    groups: tuple[Group, ...] = ()
    workloads: tuple[Workload, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class SpecProblem:
    """Why the newest spec of a job is unusable."""

    message: str
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class InvalidJob:
    """A job whose newest spec is unusable."""

    problem: SpecProblem
    status: job_status.JobStatus
    """The status as last written."""
    accepted: Layout | None = None
    """The layout of the last usable spec; None: no record has one."""
    is_of_newer_version: bool = False
    """Whether the only problems are fields that a newer version of the operator may know."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a job cannot get objects that it needs."""

    reason: names.Reason
    message: str
    """The message of the API server, or the holder of a name."""
    final: bool = True
    """Whether the spec is at fault. Otherwise, the operator tries again later."""
    objects: tuple[str, ...] = ()
    """The objects as kubectl names them, such as `pod/digits-chief-0`; empty: the message names
    them."""
    role: str = ""
    """The lower-case role of a pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """What the cluster and the installation currently allow a job to have."""

    host_ports_left: int | None = None
    """Maximum number of ports of nodes for the job.

    The namespace's other jobs use the remaining ones.
    """
    flavors: Mapping[str, Flavor] = dataclasses.field(default_factory=dict)
    """The ResourceFlavors of an admitted Workload."""
    restriction: str = ""
    """Why the installation does not allow new pods for the job; empty: it does."""
    may_create: bool = True
    """False: the API server has refused a creation, and it is too early to try again."""
    refusal: Refusal | None = None
    """A creation that the API server has refused since the last decision."""
