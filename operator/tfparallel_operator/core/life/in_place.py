"""Restarts in place: pods stay whose trainer has ended and whose agent waits for another run.

Two statuses are written ahead. The first records the attempt, as for every restart. The operator
then deletes the pods that cannot stay, and waits until each of the others says that its trainer has
ended. The second, `inPlace`, begins the attempt in the pods that are left: from then on, they
belong to it, and their agents get the word to run. The operator creates the other pods, as in every
attempt. So no process of one attempt lives next to a process of another one.

Replicas that restart alone, as with parameter servers, do so in the same two steps:
`replicaAttempts`, then `replicaPodsSince`. Those of one restart begin together. So a server does
not listen again before the chief has noticed that it was lost.

An agent names the run that has ended. It counts as waiting only if that run is the one before: no
status that was ever written lets it run a later one. So neither a late report nor an operator with
an old status in memory leads to two attempts at once.

The operator deletes a pod whose agent says nothing for a while, as it does without agents.
"""

import dataclasses
import datetime
from collections.abc import Mapping

from tfparallel_operator.api import job_status, policies
from tfparallel_operator.core import observation
from tfparallel_operator.core.context import DecisionContext
from tfparallel_operator.core.life import restarts
from tfparallel_operator.core.pods import avoided_nodes, pod_builder
from tfparallel_operator.core.queue import gang
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View, is_current
from tfparallel_trainer.contract import agents, exits

HOLD = datetime.timedelta(seconds=15)
"""How long a trainer may take to end after the loss of a peer. It notices the loss within 10 s."""

QUESTIONS_PER_SECOND = 100
"""Maximum number of questions per second of all agents of a job."""

_SHORTEST_WAIT_SECONDS = 0.25
_LONGEST_WAIT_SECONDS = 20.0


@dataclasses.dataclass(frozen=True, slots=True)
class AgentReport:
    """The latest message of an agent."""

    end: agents.RunEnd
    time: datetime.datetime
    """When it arrived first."""


@dataclasses.dataclass(frozen=True, slots=True)
class Plan:
    """The pods of earlier attempts, and what becomes of them."""

    staying: tuple[observation.Pod, ...]
    """Pods that become part of the attempt when their trainers have ended."""
    leaving: tuple[observation.Pod, ...]
    """Pods to delete."""
    may_begin: bool = False
    """Whether no process of an earlier attempt is left, and pods wait for the next run."""
    look_again_at: datetime.datetime | None = None
    """When the pods leave whose agents have said nothing."""


def plan(context: DecisionContext, status: job_status.JobStatus, view: View) -> Plan:
    """Decide which pods of earlier attempts stay."""
    if restarts.pauses_until(status, context.now) is not None:
        return Plan((), view.stale)
    deadline = _find_deadline(status, context.now)
    builder = pod_builder.PodBuilder(context.layout, context.settings, status)
    missing = set(view.missing)
    avoided = avoided_nodes.find(status)

    def waits(pod: observation.Pod) -> bool:
        return pod.ended_run == _find_run_before(pod, status)

    def stays(pod: observation.Pod) -> bool:
        runs = pod.phase is observation.Phase.RUNNING and context.now < deadline
        return (
            (waits(pod) or runs)
            and not pod.deleting
            and not pod.disrupted
            and _may_stay(context, status, pod)
            and pod.replica in missing
            and pod.node not in avoided
            and bool(pod.agent)
            and pod.agent == builder.agent_fingerprint(pod.replica)
        )

    staying = tuple(filter(stays, view.stale))
    uids = {pod.uid for pod in staying}
    leaving = tuple(pod for pod in view.stale if pod.uid not in uids)
    is_awaited = not all(map(waits, staying))
    return Plan(
        staying,
        leaving,
        may_begin=bool(staying) and not leaving and not is_awaited,
        look_again_at=deadline if is_awaited else None,
    )


def begin_attempt(status: job_status.JobStatus, old_pods: Plan) -> job_status.JobStatus:
    """Return the status that begins the attempt in the pods that stay."""
    alone = {
        pod.replica.name: pod.replica_attempt
        for pod in old_pods.staying
        if _is_restarted_alone(pod, status)
    }
    if alone:
        return status.model_copy(
            update={"replica_pods_since": {**status.replica_pods_since, **alone}}
        )
    since = min(pod.attempt for pod in old_pods.staying)
    begun = job_status.InPlaceStatus(attempt=status.attempt, pods_since=since)
    return status.model_copy(update={"in_place": begun})


def _is_restarted_alone(pod: observation.Pod, status: job_status.JobStatus) -> bool:
    """Whether the latest run of a pod's replica restarts it within the job's attempt."""
    return pod.replica.name in status.replica_attempts


def _find_run_before(pod: observation.Pod, status: job_status.JobStatus) -> agents.Run:
    """Return the run that the latest one of a pod's replica follows."""
    run = status.find_run(pod.replica.name)
    if run.replica_attempt:
        return run.model_copy(update={"replica_attempt": run.replica_attempt - 1})
    return run.model_copy(update={"attempt": run.attempt - 1})


def _may_stay(context: DecisionContext, status: job_status.JobStatus, pod: observation.Pod) -> bool:
    """Whether an old pod may train in the latest run, which has not begun in pods that stayed.

    A PodGroup belongs to one attempt, and so do its pods.
    """
    if _is_restarted_alone(pod, status):
        has_begun = pod.replica.name in status.replica_pods_since
        return pod.attempt == status.attempt and not has_begun
    return (
        context.layout.is_gang
        and pod.attempt < status.attempt
        and pod.replica_attempt == 0
        and status.pods_since is None
        and gang.find_scheduler(context.job, context.settings.gangs) is None
    )


def _find_deadline(status: job_status.JobStatus, now: datetime.datetime) -> datetime.datetime:
    """Return when trainers must have ended that the operator has not asked to end.

    After a stall, none ends by itself. If a trainer reported a lost peer, the operator has already
    waited for the ends of the others.
    """
    since, loss = status.attempt_time or now, status.failure
    if loss is not None and (
        loss.cause == policies.Cause.STALL.value or loss.exit_code == exits.Exit.PEER_LOST
    ):
        return since
    return since + HOLD


def observe(
    pods: tuple[observation.Pod, ...],
    status: job_status.JobStatus,
    reports: Mapping[str, AgentReport],
) -> tuple[observation.Pod, ...]:
    """Add to pods what their agents say: the end of a run, which is not that of the container.

    Args:
        pods: the job's, from the API server.
        status: the job's, as last written.
        reports: the latest report of each agent, by the uid of its pod.
    """
    return tuple(_observe(pod, status, reports.get(pod.uid)) for pod in pods)


def _observe(
    pod: observation.Pod, status: job_status.JobStatus, report: AgentReport | None
) -> observation.Pod:
    if report is None or pod.phase is not observation.Phase.RUNNING:
        return pod
    end = report.end
    waiting_pod = dataclasses.replace(pod, ended_run=end.run)
    if end.run != status.find_run(pod.replica.name) or not is_current(pod, status):
        return waiting_pod
    ended = observation.Exit(end.code, "Error", end.message, report.time)
    return dataclasses.replace(waiting_pod, phase=observation.Phase.FAILED, exit=ended)


def answer(
    status: job_status.JobStatus, pod: observation.Pod, end: agents.RunEnd, gang_size: int
) -> agents.AgentResponse:
    """Answer the agent of a pod, from a status that was written.

    Args:
        status: the job's.
        pod: the agent's.
        end: what the agent says.
        gang_size: number of the job's pods. The more they are, the more seldom each asks.
    """
    if pod.deleting or conditions.is_stopped(status) or conditions.finished(status):
        return agents.AgentResponse(instruction=agents.Instruction.EXIT)
    run = status.find_run(pod.replica.name)
    if end.run.precedes(run) and is_current(pod, status):
        return agents.AgentResponse(instruction=agents.Instruction.RUN, run=run)
    seconds = gang_size / QUESTIONS_PER_SECOND
    return agents.AgentResponse(
        instruction=agents.Instruction.WAIT,
        seconds=min(max(seconds, _SHORTEST_WAIT_SECONDS), _LONGEST_WAIT_SECONDS),
    )
