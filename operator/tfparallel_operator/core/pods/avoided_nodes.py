"""The nodes that the pods of a job avoid, because replicas were lost there before. Pure."""

from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel_operator.api import job_status
from tfparallel_operator.core import remedies

LOSSES = 2
"""Number of losses on a node after which the job avoids it."""

MAX_NODES = 3
"""Maximum number of nodes that a job avoids at a time."""

PATIENCE_SECONDS = 60
"""How long a pod may find no node because the job avoids some."""

_TERMS = "requiredDuringSchedulingIgnoredDuringExecution"
_EXCLUDED = "didn't match Pod's node affinity"
"""What the scheduler says if a pod's affinity or selector excludes nodes."""


def find(status: job_status.JobStatus) -> tuple[str, ...]:
    """Return the nodes to avoid, those with most losses first."""
    losses = status.node_losses
    failed = (node for node, count in losses.items() if count >= LOSSES)
    return tuple(sorted(failed, key=lambda node: (-losses[node], node))[:MAX_NODES])


def exclude(pod_spec: Mapping[str, Any], nodes: Sequence[str]) -> Mapping[str, Any]:
    """Return the affinity of a pod that avoids nodes, in addition to what it requires.

    A node has to match one of the terms, so each of them gets the nodes. A term without
    requirements matches no node, and stays so. If the template names the node, no scheduler
    chooses one.
    """
    affinity: Mapping[str, Any] = pod_spec.get("affinity") or {}
    if not nodes or pod_spec.get("nodeName"):
        return affinity
    node_affinity = affinity.get("nodeAffinity") or {}
    required = node_affinity.get(_TERMS)
    # The API server accepts one name in each requirement.
    fields = [{"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in nodes]
    terms = [{"matchFields": fields}]
    if required is not None:
        terms = [
            {**term, "matchFields": [*(term.get("matchFields") or ()), *fields]} if term else term
            for term in required.get("nodeSelectorTerms") or ()
        ]
    required = {**(required or {}), "nodeSelectorTerms": terms}
    return {**affinity, "nodeAffinity": {**node_affinity, _TERMS: required}}


def may_exclude_all(message: str) -> bool:
    """Whether a pod may find no node because of those that it avoids, as the scheduler says."""
    return _EXCLUDED in message


def find_remedy(status: job_status.JobStatus, message: str) -> str:
    """Return what to do if a pod waits.

    Args:
        status: the job's.
        message: why the pod waits, as the scheduler or the kubelet says.
    """
    nodes = find(status)
    if not nodes or not may_exclude_all(message):
        return remedies.find(message)
    return (
        f"The job avoids {list_nodes(nodes)} after repeated losses there. Wait: if its pods find no"
        f" other node for {PATIENCE_SECONDS} s, the job no longer avoids any."
    )


def describe(status: job_status.JobStatus) -> str:
    """Return the losses by node for people; empty: none."""
    nodes = find(status)
    return ", ".join(
        f"{node} {count}{' (avoided)' if node in nodes else ''}"
        for node, count in sorted(status.node_losses.items())
    )


def list_nodes(nodes: Sequence[str]) -> str:
    """Return nodes as part of a sentence."""
    return f"node {nodes[0]}" if len(nodes) == 1 else f"nodes {', '.join(nodes)}"
