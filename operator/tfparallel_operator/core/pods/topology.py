"""Which pods should be near each other, as terms for the scheduler. Pure.

The ranks of a mesh are numbered with tensor varying fastest, then spatial, stage and data, and a
pod has ranks that follow each other. So devices that exchange most are in one pod when it has
enough of them; when it has not, the pods that share them are neighbours by index and prefer to be
neighbours in the cluster.
"""

from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout

DEFAULT_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""What is near for a model that is split, unless the job says: the same node, then the same zone.
A pair on one node counts for both."""

_WEIGHTS = {names.LABEL_MESH_GROUP: 100, names.LABEL_MESH_PIPELINE: 30, names.LABEL_JOB: 10}
"""How much nearness counts: messages in every layer, once a microbatch, once a step."""


def labels(layout: Layout, replica: replicas.Replica) -> dict[str, str]:
    """Return the labels of a pod that say with which others it shares a part of the mesh."""
    if replica.role is types.Role.EVALUATOR:
        return {}
    rank = layout.rank(replica)
    return {label: str(rank // pods) for label, pods in layout.mesh_groups.items()}


def affinity(
    layout: Layout, role: types.Role, labels: tuple[tuple[str, str], ...]
) -> dict[str, Any] | None:
    """Return the podAffinity of a pod with such labels, preferred only; None: nothing is asked for.

    The narrowest place is for the pods that exchange most: if others preferred it too, they could
    take it before.
    """
    keys = _keys(layout.job)
    if not keys or role is types.Role.EVALUATOR or len(layout.training) == 1:
        return None
    job_label = {names.LABEL_JOB: layout.job.metadata.name}
    terms = [
        {
            "weight": _WEIGHTS[label],
            "podAffinityTerm": {
                "labelSelector": {"matchLabels": job_label | {label: value}},
                "topologyKey": key,
            },
        }
        for level, (label, value) in enumerate((*labels, *job_label.items()))
        for key in keys[min(level, len(keys) - 1) :]
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def _keys(job: types.TFParallelJob) -> tuple[str, ...]:
    if job.spec.scheduling is not None and job.spec.scheduling.topology_keys is not None:
        return job.spec.scheduling.topology_keys
    return () if job.spec.mesh is None else DEFAULT_KEYS
