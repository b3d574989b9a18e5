"""TF_CONFIG: the cluster and a replica's task, right under TensorFlow's own rules for every role.

TensorFlow 2 accepts the jobs chief, worker, ps and evaluator, with at most one chief and one
evaluator, and wants the evaluator in no cluster but its own.
"""

import json
from collections.abc import Sequence
from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import host_network, replicas

SHARE_ABOVE = 64
"""Replicas beyond which a copy of the cluster in each pod is more than one file for all."""

LONGEST_VARIABLE = 131_071
"""Bytes of an environment variable that Linux starts a program with, its name included."""


def address(job: types.TFParallelJob, replica: replicas.Replica) -> str:
    """Return host:port of a replica; the host is short, for the job's Service is in its own
    namespace and thousands of addresses have to fit one environment variable."""
    return f"{replica.pod_name(job.metadata.name)}.{service_name(job)}:{port(job, replica)}"


def service_name(job: types.TFParallelJob) -> str:
    """Return the name of the job's headless Service."""
    return job.metadata.name


def port(job: types.TFParallelJob, replica: replicas.Replica) -> int:
    """Return the container port named tfjob-port, or one of the job's on its nodes, or TFJob's
    default."""
    for container in containers(replicas.by_role(job)[replica.role]):
        if container.get("name") == names.CONTAINER:
            for given in container.get("ports") or ():
                if given.get("name") == names.PORT_NAME:
                    return int(given["containerPort"])
    return host_network.port(job, replica) or names.DEFAULT_PORT


def containers(spec: types.ReplicaSpec) -> Sequence[Any]:
    """Return the containers of a role's template, none when it has no template."""
    return ((spec.template or {}).get("spec") or {}).get("containers") or ()


def peers(job: types.TFParallelJob) -> str | None:
    """Return the cluster as compact JSON, as every replica but the evaluator knows it.

    None: each knows another one. Who builds many pods asks once, for it takes as long as one of
    them does.
    """
    if job.spec.enable_dynamic_worker:
        return None
    return _compact(_cluster(job, replicas.Replica(types.Role.WORKER, 0)))


def tf_config(job: types.TFParallelJob, replica: replicas.Replica, known: str | None = None) -> str:
    """Return the TF_CONFIG of a replica as compact JSON.

    Args:
        job: the job.
        replica: one of its replicas.
        known: what `peers` has returned for the job; None: it is not known.
    """
    if known is not None and replica.role is not types.Role.EVALUATOR:
        return f'{{"cluster":{known},"task":{_compact(_task(replica))}}}'
    return _compact({"cluster": _cluster(job, replica), "task": _task(replica)})


def task(replica: replicas.Replica) -> str:
    """Return the TF_CONFIG of a replica that finds the cluster in the shared file."""
    return _compact({"task": _task(replica)})


def is_shared(job: types.TFParallelJob, above: int | None) -> bool:
    """Whether the replicas share the cluster as a file instead of each having a copy.

    The shipped trainer can read one. Dynamic workers know few peers, and workers that may come and
    go without bound would need another file each time.
    """
    if above is None or job.spec.trainer is None or job.spec.enable_dynamic_worker:
        return False
    most = _most_workers(job)
    return most is not None and sum(_counts(job, most).values()) > above


def shared(job: types.TFParallelJob) -> str:
    """Return the cluster of all replicas as compact JSON, with every worker that may ever come.

    Pods say how many of them there are; the evaluator is for itself alone to know.
    """
    cluster: dict[str, list[str]] = {}
    for role, count in _counts(job, _most_workers(job) or 0).items():
        cluster[role.task_type] = [
            address(job, replicas.Replica(role, index)) for index in range(count)
        ]
    return _compact(cluster)


def excess(job: types.TFParallelJob) -> int:
    """Return by how many bytes TF_CONFIG is longer than a pod can be started with; 0: it fits."""
    every = replicas.expand(job)
    if len(every) * _LONGEST_ADDRESS + _AROUND <= LONGEST_VARIABLE:
        return 0
    sizes = (len(f"TF_CONFIG={tf_config(job, one)}") for one in (every[0], every[-1]))
    return max(0, max(sizes) - LONGEST_VARIABLE)


_LONGEST_ADDRESS = len(f'"{"p" * 63}.{"s" * 63}:65535",')
"""Bytes of the longest address there can be, as it is written."""

_AROUND = 300
"""More bytes than TF_CONFIG has beside addresses."""


def _most_workers(job: types.TFParallelJob) -> int | None:
    """Return how many workers there may be at most; None: as many as somebody asks for."""
    worker = job.spec.tf_replica_specs.get(types.Role.WORKER)
    if worker is None:
        return 0
    if worker.max_replicas is not None:
        return worker.max_replicas
    return None if replicas.elastic(job) else worker.replicas


def _counts(job: types.TFParallelJob, workers: int) -> dict[types.Role, int]:
    counts = {role: spec.replicas for role, spec in replicas.by_role(job).items()}
    if types.Role.WORKER in counts:
        counts[types.Role.WORKER] = workers
    return counts


def _task(replica: replicas.Replica) -> dict[str, Any]:
    return {"type": replica.role.task_type, "index": replica.index}


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _cluster(job: types.TFParallelJob, replica: replicas.Replica) -> dict[str, Any]:
    cluster: dict[str, Any] = {}
    for other in replicas.expand(job):
        if other.role is not types.Role.EVALUATOR or replica.role is types.Role.EVALUATOR:
            cluster.setdefault(other.role.task_type, []).append(address(job, other))
    if job.spec.enable_dynamic_worker:
        _make_sparse(cluster, job, replica)
    return cluster


def _make_sparse(
    cluster: dict[str, Any], job: types.TFParallelJob, replica: replicas.Replica
) -> None:
    """Leave out the workers that a replica need not know, so that they may come and go.

    A worker knows itself by its index; servers know no worker; chief and evaluator know all.
    """
    if replica.role is types.Role.WORKER:
        cluster["worker"] = {str(replica.index): address(job, replica)}
    elif replica.role is types.Role.PS:
        cluster.pop("worker", None)
