"""The layout of a job: its replicas, the address of each, and the coordinator. Pure.

The operator builds it once in each reconcile, and the client builds it to name replicas.
"""

import dataclasses
import functools
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import replicas

_LEADERS = (types.Role.CHIEF, types.Role.MASTER)
_WORKER = types.Role.WORKER


@dataclasses.dataclass(frozen=True, eq=False)
class Layout:
    """A job and its replicas. The spec stays as written; the counts are the current ones."""

    job: types.TFParallelJob
    specs: Mapping[types.Role, types.ReplicaSpec]
    """The spec of each role, with the chief that a job may leave out."""
    counts: Mapping[types.Role, int]
    """Number of replicas by role. The chief or master comes first."""
    host_ports: job_status.HostPorts | None
    """With hostNetwork: the ports of nodes that are reserved for the job."""

    @functools.cached_property
    def all_replicas(self) -> tuple[replicas.Replica, ...]:
        """All replicas. The chief or master comes first."""
        return tuple(
            replicas.Replica(role, index)
            for role, count in self.counts.items()
            for index in range(count)
        )

    @functools.cached_property
    def training(self) -> tuple[replicas.Replica, ...]:
        """The replicas that train, in the order of TF_CONFIG: all except the evaluator."""
        return tuple(
            replica for replica in self.all_replicas if replica.role is not types.Role.EVALUATOR
        )

    def select(self, indices: Mapping[types.Role, frozenset[int]]) -> frozenset[replicas.Replica]:
        """Return the replicas of these indices, without those that the job does not have."""
        if not any(indices.values()):
            return frozenset()
        return frozenset(
            replica
            for replica in self.all_replicas
            if replica.index in indices.get(replica.role, ())
        )

    @property
    def workers(self) -> int | None:
        """The number of workers; None: the job does not have the role."""
        return self.counts.get(_WORKER)

    @property
    def most_workers(self) -> int | None:
        """Maximum number of workers; None: unlimited."""
        worker = self.specs.get(_WORKER)
        if worker is None:
            return 0
        if worker.max_replicas is not None:
            return worker.max_replicas
        return None if self.is_elastic else self.workers

    @property
    def is_elastic(self) -> bool:
        """Whether workers may be added and removed."""
        worker = self.specs.get(_WORKER)
        return worker is not None and (worker.min_replicas or worker.max_replicas) is not None

    @functools.cached_property
    def strategy(self) -> types.Strategy:
        """The strategy of the spec, or else the one that follows from the roles."""
        if self.job.spec.strategy is not None:
            return self.job.spec.strategy
        if types.Role.PS in self.specs:
            return types.Strategy.PARAMETER_SERVER
        if len(self.training) > 1 or self.is_elastic:
            return types.Strategy.MULTI_WORKER_MIRRORED
        return types.Strategy.MIRRORED

    @property
    def is_gang(self) -> bool:
        """Whether the training replicas need each other in every step, and so restart together."""
        return self.strategy is not types.Strategy.PARAMETER_SERVER

    @functools.cached_property
    def chief(self) -> replicas.Replica | None:
        """The replica whose end ends the job, if the job has a chief."""
        return next((replicas.Replica(role, 0) for role in _LEADERS if role in self.specs), None)

    @functools.cached_property
    def coordinator(self) -> replicas.Replica:
        """The replica that reports progress: the chief, or else worker 0, as in TensorFlow."""
        return self.chief or replicas.Replica(_WORKER, 0)

    @property
    def service_name(self) -> str:
        """The name of the job's headless Service."""
        return self.job.metadata.name

    @functools.cached_property
    def most_replicas(self) -> int:
        """Maximum number of replicas.

        If the number of workers is unlimited, it is the current number.
        """
        workers = self.workers or 0
        return sum(self.counts.values()) - workers + (self.most_workers or workers)

    @property
    def needed_ports(self) -> int:
        """How many ports of nodes the replicas need."""
        return sum(self.counts.values())

    @property
    def lacks_ports(self) -> bool:
        """Whether the job lacks some of the ports that its replicas need."""
        ports = self.host_ports
        return self.job.spec.host_network and (ports is None or ports.count < self.needed_ports)

    def with_host_ports(self, first_port: int | None) -> "Layout":
        """Return the layout with ports from `first_port` on, if it lacks some; None: no port is
        free."""
        if first_port is None or not self.lacks_ports:
            return self
        ports = job_status.HostPorts(first=first_port, count=self.needed_ports)
        return dataclasses.replace(self, host_ports=ports)

    def host_port(self, replica: replicas.Replica) -> int | None:
        """Return the port of a replica on its node; None: it is not on its node's network."""
        first = self._first_host_ports.get(replica.role)
        return None if first is None else first + replica.index

    def port(self, replica: replicas.Replica) -> int:
        """Return the port that the template names tfjob-port, or the host port, or the default."""
        return self._template_ports[replica.role] or self.host_port(replica) or names.DEFAULT_PORT

    def address(self, replica: replicas.Replica) -> str:
        """Return host:port of a replica.

        The host is short: the Service is in the job's namespace, and thousands of addresses have
        to fit one environment variable.
        """
        pod_name = replica.pod_name(self.job.metadata.name)
        return f"{pod_name}.{self.service_name}:{self.port(replica)}"

    def addresses(self, role: types.Role, count: int | None = None) -> Sequence[str]:
        """Return the addresses of a role's replicas, including those that scaling may add."""
        number = self.counts[role] if count is None else count
        return [self.address(replicas.Replica(role, index)) for index in range(number)]

    @functools.cached_property
    def cluster(self) -> Mapping[str, Sequence[str]]:
        """The addresses of the training replicas, by task type."""
        return {
            role.task_type: self.addresses(role)
            for role in self.counts
            if role is not types.Role.EVALUATOR
        }

    @functools.cached_property
    def cluster_json(self) -> str:
        """The cluster as compact JSON."""
        return compact(self.cluster)

    def rank(self, replica: replicas.Replica) -> int:
        """Return the position of a training replica in the order of TF_CONFIG."""
        return self._first_ranks[replica.role] + replica.index

    @functools.cached_property
    def mesh_groups(self) -> Mapping[str, int]:
        """The pods of each kind of group that takes several pods, but not all, by its label.

        A group that begins or ends within a pod is left out: its pods belong to others too. So are
        those of a mesh that the planner has yet to choose.
        """
        if self.job.spec.mesh is None or self.job.spec.mesh.auto:
            return {}
        pods = len(self.training)
        devices = load.devices_of(next(iter(self.job.spec.tf_replica_specs.values())))
        mesh = self.job.spec.mesh.for_devices(pods * devices)
        layer = mesh.tensor * mesh.spatial
        ranks = {names.LABEL_MESH_GROUP: layer, names.LABEL_MESH_PIPELINE: layer * mesh.stage}
        return {
            label: count // devices
            for label, count in ranks.items()
            if count % devices == 0 and 1 < count // devices < pods
        }

    @functools.cached_property
    def _first_ranks(self) -> Mapping[types.Role, int]:
        return _running_sum(self.counts, self.counts)

    @functools.cached_property
    def _first_host_ports(self) -> Mapping[types.Role, int]:
        """The roles in the order of their ports.

        Workers come last, so that scaling changes no other port.
        """
        if self.host_ports is None or not self.job.spec.host_network:
            return {}
        roles = [role for role in types.Role if role in self.specs]
        roles.sort(key=lambda role: role is _WORKER)
        return _running_sum(roles, self.counts, self.host_ports.first)

    @functools.cached_property
    def _template_ports(self) -> Mapping[types.Role, int | None]:
        return {role: _template_port(spec) for role, spec in self.specs.items()}


def build(job: types.TFParallelJob, *, first_port: int | None = None) -> Layout:
    """Build the layout of a job from its spec.

    `first_port` is the first free port, if the job lacks ports.
    """
    specs = _specs(job)
    counts = {role: specs[role].replicas for role in types.Role if role in specs}
    return Layout(job, specs, counts, job.status.host_ports).with_host_ports(first_port)


def compact(value: Any) -> str:
    """Return a value as JSON without spaces."""
    return json.dumps(value, separators=(",", ":"))


def _specs(job: types.TFParallelJob) -> Mapping[types.Role, types.ReplicaSpec]:
    """Return the spec of each role, with the chief that a job may leave out.

    The chief of the shipped trainer distributes the work of servers and workers. If a job names no
    chief, it gets one like a worker, but without devices, because it computes nothing.
    """
    specs = job.spec.tf_replica_specs
    if job.spec.trainer is None or types.Role.PS not in specs or any(r in specs for r in _LEADERS):
        return specs
    like = specs[_WORKER]
    chief = like.model_copy(update={"replicas": 1, "devices": None})
    return {types.Role.CHIEF: chief, **specs}


def _template_port(spec: types.ReplicaSpec) -> int | None:
    for container in spec.pod_spec.get("containers") or ():
        if container.get("name") == names.CONTAINER:
            for port in container.get("ports") or ():
                if port.get("name") == names.PORT_NAME:
                    return int(port["containerPort"])
    return None


def _running_sum(
    roles: Iterable[types.Role], counts: Mapping[types.Role, int], first: int = 0
) -> Mapping[types.Role, int]:
    sums = {}
    for role in roles:
        sums[role] = first
        first += counts[role]
    return sums
