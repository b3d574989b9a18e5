"""TF_CONFIG: the cluster and a replica's task, right under TensorFlow's own rules for every role.

TensorFlow 2 accepts the jobs chief, worker, ps and evaluator, with at most one chief and one
evaluator. It wants the evaluator in no cluster but its own.
"""

from typing import Any

from tfparallel_operator.api import types
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout, compact

SHARED_VARIABLE = "TFPARALLEL_CLUSTER"
"""The variable that the kubelet fills in from the ConfigMap, and then TF_CONFIG with it."""

LONGEST_VARIABLE = 131_071
"""Bytes of an environment variable that Linux starts a program with, its name included."""

_LONGEST_ADDRESS = 150
"""Bytes of an address with two names of 63 and a port, and its share of what is around it."""


def tf_config(layout: Layout, replica: replicas.Replica, *, shares_cluster: bool = False) -> str:
    """Return the TF_CONFIG of a replica as compact JSON, or what becomes it where it is shared.

    The shipped trainer reads the cluster from a file. For other commands the kubelet fills it in.
    """
    task = f'"task":{{"type":"{replica.role.task_type}","index":{replica.index}}}'
    if shares_cluster and layout.job.spec.trainer is not None:
        return f"{{{task}}}"
    is_evaluator = replica.role is types.Role.EVALUATOR
    if layout.job.spec.enable_dynamic_worker or is_evaluator:
        cluster = compact(_cluster_of(layout, replica))
    else:
        cluster = f"$({SHARED_VARIABLE})" if shares_cluster else layout.cluster_json
    return f'{{"cluster":{cluster},{task}}}'


def is_shared(layout: Layout, above: int | None) -> bool:
    """Whether the replicas share the cluster in the ConfigMap instead of each having a copy.

    Dynamic workers know few peers. Where workers may come and go, the shipped trainer needs a bound
    to share one that never changes, and other commands expect no worker that is yet to come.
    """
    spec = layout.job.spec
    if above is None or spec.enable_dynamic_worker:
        return False
    if layout.is_elastic and (spec.trainer is None or layout.most_workers is None):
        return False
    return layout.most_replicas > above


def shared(layout: Layout) -> str:
    """Return the cluster that replicas share as compact JSON.

    For the shipped trainer it has every worker that may ever come, and the evaluator. The pods say
    how many workers there are, and the evaluator is for itself alone to know.
    """
    if layout.job.spec.trainer is None:
        return layout.cluster_json
    cluster = {role.task_type: layout.addresses(role) for role in layout.counts}
    worker = types.Role.WORKER
    if worker in layout.counts:
        cluster[worker.task_type] = layout.addresses(worker, layout.most_workers)
    return compact(cluster)


def excess(layout: Layout) -> int:
    """Return by how many bytes TF_CONFIG is longer than a pod can be started with; 0: it fits."""
    if len(layout.all_replicas) * _LONGEST_ADDRESS <= LONGEST_VARIABLE:
        return 0
    ends = layout.all_replicas[0], layout.all_replicas[-1]
    longest = max(len(f"TF_CONFIG={tf_config(layout, replica)}") for replica in ends)
    return max(0, longest - LONGEST_VARIABLE)


def _cluster_of(layout: Layout, replica: replicas.Replica) -> dict[str, Any]:
    """Return the cluster as a replica knows it that knows another one than its peers.

    The evaluator knows itself. Of dynamic workers each knows itself by its index alone, and servers
    know none, so that workers may come and go; chief and evaluator know all.
    """
    cluster: dict[str, Any] = dict(layout.cluster)
    if replica.role is types.Role.EVALUATOR:
        cluster[replica.role.task_type] = layout.addresses(replica.role)
    elif replica.role is types.Role.WORKER:
        cluster["worker"] = {str(replica.index): layout.address(replica)}
    elif replica.role is types.Role.PS:
        cluster.pop("worker", None)
    return cluster
