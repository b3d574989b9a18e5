"""Counts losses for which a node may be at fault, and releases nodes if pods find no others. Pure.

The pods that the operator creates from the second loss on avoid the node. Pods that live there
stay. If a restart ends their trainers, they do not restart in place.

A pod's affinity cannot change. To release nodes, the operator replaces the pods that have no node
yet: nothing has run in them, and their peers wait for them in any case.
"""

import datetime
from collections.abc import Iterable

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation, pod_ends, remedies
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import counts, deadlines, ending, restarts
from tfparallel_operator.core.pods import avoided_nodes

_PATIENCE = datetime.timedelta(seconds=avoided_nodes.PATIENCE_SECONDS)
_LONGEST_PATIENCE = datetime.timedelta(minutes=10)
"""Patience with a pod of which the scheduler does not say that its affinity excludes nodes.

A cluster may need minutes to add a node, and some schedulers never say it.
"""

_MOST_COUNTED = 32
"""Maximum number of nodes in a status."""


def count(
    context: DecisionContext, status: job_status.JobStatus, pods: Iterable[observation.Pod]
) -> job_status.JobStatus:
    """Return the status with the losses of a restart counted for their nodes, each node once."""
    if not _avoids(context):
        return status
    losses = dict(status.node_losses)
    for node in sorted({pod.node for pod in pods if pod.node and pod_ends.find(pod).of_node}):
        losses[node] = losses.get(node, 0) + 1
        if len(losses) > _MOST_COUNTED:
            del losses[min(losses.keys() - {node}, key=lambda other: (losses[other], other))]
    return status.model_copy(update={"node_losses": losses})


def announce(
    before: job_status.JobStatus, after: job_status.JobStatus
) -> tuple[decision.JobEvent, ...]:
    """Return the Events about nodes that the job avoids from now on."""
    earlier = avoided_nodes.find(before)
    return tuple(
        decision.warning(names.Reason.NODE_AVOIDED, _describe(node, after.node_losses[node]))
        for node in avoided_nodes.find(after)
        if node not in earlier
    )


def release(
    context: DecisionContext, status: job_status.JobStatus
) -> tuple[decision.Decision | None, datetime.datetime | None]:
    """Return the decision to avoid no node, or else when pods will have waited for too long.

    It comes before the end of `pendingDeadlineSeconds`, which then begins again.
    """
    nodes = avoided_nodes.find(status)
    if not nodes:
        return None, None
    pods = tuple(
        pod
        for pod in context.view_of(status).current.values()
        if pod.phase is observation.Phase.PENDING and not pod.node
    )
    at = deadlines.earliest(*map(_end_of_patience, pods))
    if pods:
        at = deadlines.earliest(at, deadlines.pending(context.job, status))
    if _avoids(context) and (at is None or at > context.now):
        return None, at
    message = f"the job no longer avoids {avoided_nodes.list_nodes(nodes)}"
    if _avoids(context):
        message = f"{pods[0].name} finds no other node: {message}"
    losses = {node: n for node, n in status.node_losses.items() if n < avoided_nodes.LOSSES}
    status = status.model_copy(update={"node_losses": losses})
    if pods:
        status = restarts.restart_alone(status, [pod.replica for pod in pods], context.now)
    return (
        decision.Decision(
            counts.count(status, context.view_of(status)),
            events=(decision.warning(names.Reason.NODE_RELEASED, message),),
            deletions=ending.delete_pods(pods),
            wake_at=deadlines.active(context.job, status),
        ),
        None,
    )


def _describe(node: str, losses: int) -> str:
    problem = f"replicas were lost on node {node} {losses} times: new pods of the job avoid it"
    remedy = f"Find out what is wrong with the node: `kubectl describe node {node}`."
    return remedies.Advice(problem, remedy).message


def _avoids(context: DecisionContext) -> bool:
    scheduling = context.job.spec.scheduling
    return scheduling is None or scheduling.avoid_failed_nodes


def _end_of_patience(pod: observation.Pod) -> datetime.datetime | None:
    """Return when a pod has waited for a node for too long; None: no scheduler has seen it."""
    if pod.unschedulable_since is None:
        return None
    is_excluded = avoided_nodes.may_exclude_all(pod.waiting)
    return pod.unschedulable_since + (_PATIENCE if is_excluded else _LONGEST_PATIENCE)
