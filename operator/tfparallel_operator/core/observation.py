"""What is seen of a job's children and of its cluster, as slim values."""

import dataclasses
import datetime
import enum
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout


def parse_time(text: str | None) -> datetime.datetime | None:
    """Return a time of an object; None for none, and for one that has no meaning here.

    The API server stores times beyond the year 9999, and other writers leave out the zone.
    """
    try:
        time = datetime.datetime.fromisoformat(text or "")
        return (time if time.tzinfo else time.replace(tzinfo=datetime.UTC)).astimezone(datetime.UTC)
    except (ValueError, OverflowError):
        return None


class Phase(enum.StrEnum):
    """Where a pod is in its life; the exit of the container tensorflow decides, not sidecars."""

    PENDING = "Pending"
    RUNNING = "Running"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"

    @property
    def ended(self) -> bool:
        """Whether nothing more happens in the pod."""
        return self in (Phase.SUCCEEDED, Phase.FAILED)


@dataclasses.dataclass(frozen=True, slots=True)
class Exit:
    """How the container tensorflow, or the pod before it, ended."""

    code: int
    """Exit code; -1 when the container never ran to an exit (evicted, node lost)."""
    reason: str
    """The kubelet's word: Completed, Error, OOMKilled, Evicted."""
    message: str
    finished_at: datetime.datetime | None
    of_source: bool = False
    """Whether it is the exit of the init container that fetches the source."""
    restarted: bool = False
    """Whether the kubelet has started the container again since, by a restartPolicy of its own."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pod:
    """One pod of the job (matched by owner uid)."""

    name: str
    uid: str
    replica: replicas.Replica
    attempt: int
    """The job's attempt that it was created in (label)."""
    replica_attempt: int
    """The replica's own restarts within that attempt (label)."""
    phase: Phase
    deleting: bool = False
    """Whether it has a deletion timestamp."""
    hidden: bool = False
    """Whether it has lost the label by which the operator follows pods."""
    delete_by: datetime.datetime | None = None
    """When its grace ends, if it is being deleted."""
    node: str = ""
    """Where it runs."""
    disrupted: bool = False
    """Whether the cluster takes it: its condition DisruptionTarget is true."""
    reason: str = ""
    """Of its status, such as Evicted; else of DisruptionTarget, such as PreemptionByScheduler."""
    message: str = ""
    """The sentence that goes with the reason."""
    exit: Exit | None = None
    lingers: bool = False
    """Whether the pod has ended but a sidecar still runs and holds the pod's resources."""
    finalizers: tuple[str, ...] = ()
    """Who has to let a pod go that is being deleted: nothing else ends it."""
    waiting: str = ""
    """Why it is pending, in the words of the scheduler, the kubelet, an Event or its claim."""


@dataclasses.dataclass(frozen=True, slots=True)
class Group:
    """One PodGroup of the job, of any of the gang schedulers."""

    api_version: str
    """Whose it is."""
    name: str
    uid: str
    spec: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class PodSetAdmission:
    """Where the pods of one role may go, as Kueue has admitted them."""

    flavors: tuple[str, ...] = ()
    """The ResourceFlavors whose quota they use."""
    updates: tuple[Mapping[str, Any], ...] = ()
    """What admission checks add to them: labels, annotations, nodeSelector, tolerations."""
    placed: bool = False
    """Whether Kueue itself gives each pod a place (topology-aware scheduling)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Flavor:
    """One ResourceFlavor of Kueue: which nodes it stands for."""

    node_labels: Mapping[str, str]
    tolerations: tuple[Mapping[str, Any], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Workload:
    """One Workload of Kueue that the job owns."""

    name: str
    uid: str
    version: str
    """Its resource version."""
    queue: str
    priority_class: str
    """Its WorkloadPriorityClass; empty when it has none."""
    counts: Mapping[str, int]
    """Pods by pod set."""
    resources: str = ""
    """Hashes of the resources and of the place that its pods ask for, as the job wrote them.

    What an older release did not write is missing."""
    active: bool = True
    """False: somebody has stopped it."""
    deleting: bool = False
    conditions: tuple[Mapping[str, Any], ...] = ()
    """Its conditions as they are."""
    cluster_queue: str = ""
    """Who has reserved quota for it."""
    admission: Mapping[str, PodSetAdmission] = dataclasses.field(default_factory=dict)
    """What was reserved, by pod set."""
    reclaimable: Mapping[str, int] = dataclasses.field(default_factory=dict)
    """Pods whose quota the job has given back, by pod set."""
    pending_checks: tuple[str, ...] = ()
    """What the admission checks say that it waits for."""


@dataclasses.dataclass(frozen=True, slots=True)
class Config:
    """The ConfigMap of the job."""

    name: str
    uid: str
    fingerprint: str
    """Of what its content was made from."""
    installation: str = ""
    """The installation of the operator that acts on the job; empty: an older one wrote it."""
    question: str = ""
    """What another installation asks that one; see `core.life.installations`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Children:
    """The objects that a job owns, as last observed."""

    pods: tuple[Pod, ...] = ()
    has_service: bool = False
    config: Config | None = None
    """The ConfigMap."""
    has_policy: bool = False
    """Whether there is a NetworkPolicy."""
    groups: tuple[Group, ...] = ()
    workloads: tuple[Workload, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class Problem:
    """Why the newest spec of a job cannot be used."""

    message: str
    generation: int


@dataclasses.dataclass(frozen=True, slots=True)
class InvalidJob:
    """A job whose newest spec cannot be used."""

    problem: Problem
    status: job_status.JobStatus
    """As last written."""
    accepted: Layout | None = None
    """The layout of the last spec that could be used; None: none is on record."""
    is_of_newer_version: bool = False
    """Whether all that is wrong is fields that a newer version of the operator may know."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """What keeps a job from objects that it needs."""

    reason: names.Reason
    message: str
    """Why: the API server's sentence, or what holds a name."""
    final: bool = True
    """Whether the spec is at fault; else the create is tried again later."""
    objects: tuple[str, ...] = ()
    """Those objects, as kubectl names them: `pod/digits-chief-0`. Empty: the sentence has them."""
    role: str = ""
    """The lower-case role of a pod."""


@dataclasses.dataclass(frozen=True, slots=True)
class Environment:
    """What the cluster and the installation let a job have at the moment."""

    host_ports_left: int | None = None
    """How many ports of nodes the job may have besides those of its namespace's other jobs."""
    flavors: Mapping[str, Flavor] = dataclasses.field(default_factory=dict)
    """The ResourceFlavors that an admitted Workload names."""
    restriction: str = ""
    """Why the installation lets the job have no new pods; empty: it does."""
    may_create: bool = True
    """False: the API server has refused a create, and it is not time to try again."""
    refusal: Refusal | None = None
    """A create that the API server has refused since the last decision."""
