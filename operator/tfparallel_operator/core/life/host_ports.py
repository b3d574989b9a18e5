"""Ports of nodes. A job holds them while it has pods or is about to create some. Pure."""

import datetime

from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.status import conditions

_REFUSED = names.ConditionType.CREATION_REFUSED

_LOOK_FOR_PORTS = datetime.timedelta(seconds=10)
"""How often to check whether ports have become free for a job that waits for some."""


def wait(context: DecisionContext) -> decision.Decision | None:
    """Let a job wait until other jobs with hostNetwork have released ports."""
    if not context.layout.lacks_ports or not context.environment.may_create:
        return None
    needed, left = context.layout.needed_ports, context.environment.host_ports_left
    message = (
        f"hostNetwork: no {needed} ports in a row are free: other jobs on their nodes' network have"
        " to end first"
    )
    if left is not None and left < needed:
        most = context.settings.host_ports_of_namespace
        message = (
            f"hostNetwork: the job needs {needed} ports of nodes, and of the {most} that the jobs"
            f" of a namespace may have {left} are left. End other jobs of the namespace, request"
            " fewer replicas, or have an administrator raise jobs.hostPortsPerNamespace"
        )
    reason = names.Reason.HOST_PORTS_TAKEN
    is_news = not conditions.is_true(context.status, _REFUSED)
    status = context.stamp.set(context.status, _REFUSED, True, reason, message)
    return decision.Decision(
        status,
        events=(decision.warning(reason, message),) if is_news else (),
        wake_at=context.now + _LOOK_FOR_PORTS,
    )


def give_back(context: DecisionContext, status: job_status.JobStatus) -> job_status.JobStatus:
    """Return a status without ports, if the job has no pods and creates none for now."""
    environment = context.environment
    if context.children.pods or status.host_ports is None:
        return status
    is_refused = environment.refusal is not None or not environment.may_create
    rests = conditions.is_true(status, names.ConditionType.SUSPENDED)
    waits = conditions.is_false(status, names.ConditionType.ADMITTED)
    if not (is_refused or environment.restriction or rests or waits):
        return status
    return status.model_copy(update={"host_ports": None})
