"""TF_CONFIG: the cluster and a replica's task, by TensorFlow's own rules for each role.

TensorFlow 2 accepts the jobs chief, worker, ps and evaluator, with at most one chief and one
evaluator. The evaluator must be in no cluster but its own.
"""

from typing import Any

from tfparallel_operator.api import types
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout, compact

SHARED_VARIABLE = "TFPARALLEL_CLUSTER"
"""The variable that the kubelet fills in from the ConfigMap, and that TF_CONFIG contains."""

LONGEST_VARIABLE = 131_071
"""Maximum bytes of an environment variable on Linux, including its name."""

_LONGEST_ADDRESS = 150
"""Maximum bytes of an address: two names of 63 bytes, a port, and its share of the JSON."""


def tf_config(layout: Layout, replica: replicas.Replica, *, shares_cluster: bool = False) -> str:
    """Return the TF_CONFIG of a replica as compact JSON.

    If the cluster is shared, it is incomplete.

    The shipped trainer then reads the cluster from a file. For other commands, the kubelet fills it
    in.
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
    """Whether the replicas share the cluster in the ConfigMap, instead of a copy for each.

    Dynamic workers know few peers. If workers may be added and removed, the shipped trainer needs a
    maximum, so that the shared cluster never changes. Other commands do not expect workers that do
    not exist yet.
    """
    spec = layout.job.spec
    if above is None or spec.enable_dynamic_worker:
        return False
    if layout.is_elastic and (spec.trainer is None or layout.most_workers is None):
        return False
    return layout.most_replicas > above


def shared(layout: Layout) -> str:
    """Return the shared cluster as compact JSON.

    For the shipped trainer, it contains every worker that scaling may add, and the evaluator. A
    variable of the pods says how many workers exist, and only the evaluator uses its own address.
    """
    if layout.job.spec.trainer is None:
        return layout.cluster_json
    cluster = {role.task_type: layout.addresses(role) for role in layout.counts}
    worker = types.Role.WORKER
    if worker in layout.counts:
        cluster[worker.task_type] = layout.addresses(worker, layout.most_workers)
    return compact(cluster)


def excess(layout: Layout) -> int:
    """Return by how many bytes TF_CONFIG is too long for a pod; 0: it fits."""
    if len(layout.all_replicas) * _LONGEST_ADDRESS <= LONGEST_VARIABLE:
        return 0
    ends = layout.all_replicas[0], layout.all_replicas[-1]
    longest = max(len(f"TF_CONFIG={tf_config(layout, replica)}") for replica in ends)
    return max(0, longest - LONGEST_VARIABLE)


def _cluster_of(layout: Layout, replica: replicas.Replica) -> dict[str, Any]:
    """Return the cluster of a replica that sees another cluster than its peers.

    The evaluator sees only itself. A dynamic worker sees only itself, by its index, and servers see
    no workers, so that workers may be added and removed. Chief and evaluator see all.
    """
    cluster: dict[str, Any] = dict(layout.cluster)
    if replica.role is types.Role.EVALUATOR:
        cluster[replica.role.task_type] = layout.addresses(replica.role)
    elif replica.role is types.Role.WORKER:
        cluster["worker"] = {str(replica.index): layout.address(replica)}
    elif replica.role is types.Role.PS:
        cluster.pop("worker", None)
    return cluster
