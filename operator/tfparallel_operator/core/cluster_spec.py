"""TF_CONFIG: the cluster and a replica's task, right under TensorFlow's own rules for every role.

TensorFlow 2 accepts the jobs chief, worker, ps and evaluator, with at most one chief and one
evaluator, and wants the evaluator in no cluster but its own.
"""

import json
from collections.abc import Sequence
from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import replicas


def address(job: types.TFParallelJob, replica: replicas.Replica) -> str:
    """Return host:port of a replica; the host is short, for the job's Service is in its own
    namespace and thousands of addresses have to fit one environment variable."""
    port = replica_port(replicas.by_role(job)[replica.role])
    return f"{replica.pod_name(job.metadata.name)}.{service_name(job)}:{port}"


def service_name(job: types.TFParallelJob) -> str:
    """Return the name of the job's headless Service."""
    return job.metadata.name


def replica_port(spec: types.ReplicaSpec) -> int:
    """Return the container port named tfjob-port, or TFJob's default."""
    for container in containers(spec):
        if container.get("name") == names.CONTAINER:
            for port in container.get("ports") or ():
                if port.get("name") == names.PORT_NAME:
                    return int(port["containerPort"])
    return names.DEFAULT_PORT


def containers(spec: types.ReplicaSpec) -> Sequence[Any]:
    """Return the containers of a role's template, none when it has no template."""
    return ((spec.template or {}).get("spec") or {}).get("containers") or ()


def tf_config(job: types.TFParallelJob, replica: replicas.Replica) -> str:
    """Return the TF_CONFIG of a replica as compact JSON."""
    config = {
        "cluster": _cluster(job, replica),
        "task": {"type": replica.role.task_type, "index": replica.index},
    }
    return json.dumps(config, separators=(",", ":"))


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
