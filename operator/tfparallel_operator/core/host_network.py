"""Jobs on the network of their nodes: a port for each replica, so that any two may share a node."""

from typing import Any

from tfparallel_operator.api import job_status, types
from tfparallel_operator.core import containers, replicas

FIRST_PORT = 10_000
END_PORT = 30_000
"""Ports that are given out end before this one: node ports of Services begin here, and above them
lie those that systems give to outgoing connections."""

INTERFACES = "NCCL_SOCKET_IFNAME"
_OF_PODS = "^lo,docker,veth,cni,cali,cilium,flannel"
"""Interfaces of a node that lead to other pods of the node alone, or to none."""


def needed(job: types.TFParallelJob) -> int:
    """Return how many ports a job needs: one for each replica that it may have."""
    counts = {role: spec.replicas for role, spec in replicas.by_role(job).items()}
    worker = job.spec.tf_replica_specs.get(types.Role.WORKER)
    if worker is not None:
        counts[types.Role.WORKER] = worker.max_replicas or worker.replicas
    return sum(counts.values())


def lacks_ports(job: types.TFParallelJob) -> bool:
    """Whether ports, or more of them, have yet to be set aside for a job."""
    ports = job.status.host_ports
    return job.spec.host_network and (ports is None or ports.count < needed(job))


def with_ports(job: types.TFParallelJob, first: int) -> types.TFParallelJob:
    """Return the job with the ports that are set aside for it."""
    ports = job_status.HostPorts(first=first, count=needed(job))
    status = job.status.model_copy(update={"host_ports": ports})
    return job.model_copy(update={"status": status})


def port(job: types.TFParallelJob, replica: replicas.Replica) -> int | None:
    """Return the port of a replica; None when it is not on its node's network.

    Workers have the last ones, so that no other replica's changes when they come or go.
    """
    ports = job.status.host_ports
    if not job.spec.host_network or ports is None:
        return None
    counts = {role: spec.replicas for role, spec in replicas.by_role(job).items()}
    order: list[types.Role] = [role for role in types.Role if role in counts]
    order.sort(key=lambda role: role is types.Role.WORKER)
    before = order[: order.index(replica.role)]
    return ports.first + sum(counts[role] for role in before) + replica.index


def prepare(pod_spec: dict[str, Any], container: dict[str, Any]) -> None:
    """Put a pod on its node's network, in place; the names of peers are resolved as in any pod."""
    pod_spec["hostNetwork"] = True
    pod_spec.setdefault("dnsPolicy", "ClusterFirstWithHostNet")
    containers.set_env(container, INTERFACES, _OF_PODS)
