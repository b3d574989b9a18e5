"""Which pods should be near each other, and how the scheduler is told. Pure.

The ranks of a mesh are numbered with tensor varying fastest, then spatial, stage and data, and a
pod has ranks that follow each other. So devices that exchange most are in one pod when it has
enough of them; when it has not, the pods that share them are neighbours by index and prefer to be
neighbours in the cluster.
"""

from collections.abc import Iterator
from typing import Any

from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import replicas

DEFAULT_KEYS = ("kubernetes.io/hostname", "topology.kubernetes.io/zone")
"""What is near for a model that is split, unless the job says: the same node, then the same zone.
A pair on one node counts for both."""

_WEIGHTS = {names.LABEL_MESH_GROUP: 100, names.LABEL_MESH_PIPELINE: 30, names.LABEL_JOB: 10}
"""How much nearness counts: messages in every layer, once a microbatch, once a step."""


def labels(job: types.TFParallelJob, replica: replicas.Replica) -> dict[str, str]:
    """Return the labels of a pod that say with which others it shares a part of the mesh."""
    if job.spec.mesh is None or replica.role is types.Role.EVALUATOR:
        return {}
    counts = _counts(job)
    roles = list(counts)
    before = roles[: roles.index(replica.role)]
    place = sum(counts[role] for role in before) + replica.index
    return {label: str(place // pods) for label, pods in _shared(job, sum(counts.values()))}


def affinity(job: types.TFParallelJob, replica: replicas.Replica) -> dict[str, Any] | None:
    """Return the podAffinity of a pod, preferred only; None when nothing is asked for.

    The narrowest place is for the pods that exchange most: if others preferred it too, they could
    take it before.
    """
    keys = _keys(job)
    if not keys:
        return None
    if replica.role is types.Role.EVALUATOR or sum(_counts(job).values()) == 1:
        return None
    wanted = {names.LABEL_JOB: job.metadata.name}
    terms = [
        _term(wanted | {label: value}, key, _WEIGHTS[label])
        for level, (label, value) in enumerate((labels(job, replica) | wanted).items())
        for key in keys[min(level, len(keys) - 1) :]
    ]
    return {"preferredDuringSchedulingIgnoredDuringExecution": terms}


def _term(matched: dict[str, str], key: str, weight: int) -> dict[str, Any]:
    selector = {"matchLabels": matched}
    return {
        "weight": weight,
        "podAffinityTerm": {"labelSelector": selector, "topologyKey": key},
    }


def _keys(job: types.TFParallelJob) -> tuple[str, ...]:
    if job.spec.scheduling is not None and job.spec.scheduling.topology_keys is not None:
        return job.spec.scheduling.topology_keys
    return () if job.spec.mesh is None else DEFAULT_KEYS


def _counts(job: types.TFParallelJob) -> dict[types.Role, int]:
    """Count the replicas that compute together, in the order of TF_CONFIG, which is that of the
    ranks."""
    counts = replicas.counts(job)
    return {role: count for role, count in counts.items() if role is not types.Role.EVALUATOR}


def _shared(job: types.TFParallelJob, pods: int) -> Iterator[tuple[str, int]]:
    """Yield each kind of group that takes several pods, but not all, and how many it takes.

    A group that begins or ends within a pod is left out: its pods belong to others too. So are
    those of a mesh that the planner has yet to choose.
    """
    if job.spec.mesh is None or job.spec.mesh.auto:
        return
    devices = load.devices_of(next(iter(job.spec.tf_replica_specs.values())))
    mesh = job.spec.mesh.over(pods * devices)
    layer = mesh.tensor * mesh.spatial
    for label, ranks in (
        (names.LABEL_MESH_GROUP, layer),
        (names.LABEL_MESH_PIPELINE, layer * mesh.stage),
    ):
        if ranks % devices == 0 and 1 < ranks // devices < pods:
            yield label, ranks // devices
