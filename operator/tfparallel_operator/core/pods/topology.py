"""Chooses which pods should be near each other, as terms for the scheduler. Pure.

The numbers of the ranks of a mesh vary fastest along tensor, then spatial, stage and data, and a
pod has consecutive ranks. So devices that exchange most are in the same pod if it has enough of
them. If it has not, the pods that share such devices are neighbours by index, and prefer to be near
each other in the cluster.
"""

from typing import Any

from tfparallel_operator.api import names, types
from tfparallel_operator.core import replicas
from tfparallel_operator.core.layout import Layout

DEFAULT_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""Default topology keys for a split model: the same node, then the same zone.

A pair of pods on one node counts for both.
"""

_WEIGHTS = {names.LABEL_MESH_GROUP: 100, names.LABEL_MESH_PIPELINE: 30, names.LABEL_JOB: 10}
"""Weights of nearness for messages in every layer, once a microbatch, and once a step."""


def labels(layout: Layout, replica: replicas.Replica) -> dict[str, str]:
    """Return the labels that say with which other pods a pod shares a part of the mesh."""
    if replica.role is types.Role.EVALUATOR:
        return {}
    rank = layout.rank(replica)
    return {label: str(rank // pods) for label, pods in layout.mesh_groups.items()}


def affinity(
    layout: Layout, role: types.Role, labels: tuple[tuple[str, str], ...]
) -> dict[str, Any] | None:
    """Return the preferred podAffinity of a pod with such labels; None: it needs none.

    Only the pods that exchange most prefer the narrowest domain. Otherwise, others could take their
    places first.
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
