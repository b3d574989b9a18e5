"""Losses of replicas: which there are, what caused them, and which of them is the root."""

import dataclasses
import datetime
import re

from tfparallel_operator.api import names, policies, types
from tfparallel_operator.core import installation, layout, observation, remedies, replicas, view
from tfparallel_trainer.contract import exits

_FIRST_SIGNAL_CODE = 128
_CONTRACT = frozenset(exits.Exit)
_FINAL = frozenset(code for code in exits.Exit if not code.retryable)
"""Codes that would come again, of people's own commands too: their scripts may call the trainer's
`fit`. Codes outside the contract, such as those of signals, may be retried."""
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)

OOM_KILLED = "OOMKilled"
"""The kubelet's reason when the kernel ended a container that ran out of memory."""

_TURNED_AWAY = frozenset(
    {
        "UnexpectedAdmissionError",
        "NodeAffinity",
        "NodeName",
        "NodePorts",
        "TaintToleration",
        "TopologyAffinityError",
        "PodAdmissionError",
    }
)
"""Reasons of a pod that its node did not take in; so are those that begin with OutOf."""


_DESCRIPTION = re.compile(r"(?P<pod>\S+) exited with code (?P<code>\d+) ")


def find_exit(message: str) -> tuple[str, int] | None:
    """Return the pod and the exit code in a message that begins as `Loss.describe` writes it."""
    match = _DESCRIPTION.match(message)
    return None if match is None else (match["pod"], int(match["code"]))


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A replica that ended without success, whose pod is gone, or that does not get on."""

    replica: replicas.Replica
    cause: policies.Cause
    exit: observation.Exit | None
    fate: str = "vanished"
    """What became of it, when it has no exit."""
    of_waiting_gang: bool = False
    """Whether it was lost before any pod of its gang had a place."""

    def describe(self, job_name: str) -> str:
        """Say which replica was lost, and how, with what it said itself of its end."""
        name = self.replica.pod_name(job_name)
        if self.exit is not None and self.exit.of_source:
            name = f"{name}: init container {names.SOURCE_CONTAINER}"
        if self.exit is None:
            return f"{name} {self.fate}"
        if self.exit.code < 0:
            return f"{name} ended: {self.exit.reason} {self.exit.message}".rstrip()
        meaning = exits.describe(self.exit.code)
        reason = f", {self.exit.reason}" if self.exit.reason not in ("", "Error") else ""
        sentence = f"{name} exited with code {self.exit.code} ({meaning}{reason})"
        message = remedies.shorten(self.exit.message).rstrip(".")
        return f"{sentence}: {message}" if message else sentence

    @property
    def remedy(self) -> str:
        """What to do about it, where that is known and the replica did not say so itself."""
        if self.exit is None:
            return remedies.find(self.fate)
        return remedies.find_for_exit(self.exit.code, self.exit.reason, self.exit.message)


def losses(view: view.View) -> tuple[Loss, ...]:
    """List the losses of an attempt, the root cause first.

    When one replica is lost its peers end too, so only the first loss counts. One of training
    comes before the evaluator's, a disruption before a failure, an exit before the exits of peers
    that say they lost someone, then the earliest. A pod that is being taken, and still runs, is no
    loss by itself; it is the root of the losses of a gang whose other members have ended.
    """
    losses = [
        Loss(pod.replica, cause(view.layout, pod), pod.exit)
        for pod in view.current.values()
        if pod.phase is observation.Phase.FAILED and pod.replica not in view.ignored
    ]
    waits = view.is_waiting_gang
    losses += [
        Loss(replica, policies.Cause.DISRUPTION, None, of_waiting_gang=waits)
        for replica in view.vanished
    ]
    if view.layout.is_gang and any(_trains(loss.replica) for loss in losses):
        losses += [
            Loss(pod.replica, policies.Cause.DISRUPTION, None, "is being deleted or evicted")
            for pod in view.current.values()
            if _trains(pod.replica) and not pod.phase.ended and (pod.deleting or pod.disrupted)
        ]
    return tuple(sorted(losses, key=_root_first))


def _trains(replica: replicas.Replica) -> bool:
    return replica.role is not types.Role.EVALUATOR


def _root_first(loss: Loss) -> tuple[bool, bool, bool, datetime.datetime]:
    code = None if loss.exit is None else loss.exit.code
    finished_at = None if loss.exit is None else loss.exit.finished_at
    return (
        not _trains(loss.replica),
        loss.cause.bounded,
        code == exits.Exit.PEER_LOST,
        finished_at or _LAST,
    )


def settles_at(
    loss: Loss, view: view.View, settling: datetime.timedelta, *, final: bool
) -> datetime.datetime | None:
    """Return until when a loss may turn out to be the consequence of one that is not seen yet.

    A lost peer waits for the peer's own exit. An answer that ends a job whose replicas need each
    other is `final`, and waits so long for signs that the cluster took one of them, unless the
    trainer says what it was. None: the loss counts at once.
    """
    if loss.exit is None or loss.exit.finished_at is None or not loss.cause.bounded:
        return None
    if loss.exit.code == exits.Exit.PEER_LOST:
        all_ended = all(phase.ended for phase in view.phases.values())
        waits = None if all_ended else installation.SETTLING
    else:
        known = loss.exit.code in _FINAL or len(view.layout.all_replicas) == 1
        waits = settling if final and view.layout.is_gang and not known else None
    return None if waits is None else loss.exit.finished_at + waits


def cause(layout: layout.Layout, pod: observation.Pod) -> policies.Cause:
    """Say why a pod that ended without success did."""
    if pod.disrupted or pod.deleting:
        return policies.Cause.DISRUPTION
    code, reason = (-1, "") if pod.exit is None else (pod.exit.code, pod.exit.reason)
    if code < 0 and (reason in _TURNED_AWAY or reason.startswith("OutOf")):
        return policies.Cause.INFRASTRUCTURE
    if code == exits.Exit.STORAGE_FAILED and pod.exit is not None and pod.exit.of_source:
        return policies.Cause.INFRASTRUCTURE
    if reason == OOM_KILLED or code == exits.Exit.OUT_OF_MEMORY:
        return policies.Cause.OUT_OF_MEMORY
    if code == exits.Exit.STALLED:
        return policies.Cause.STALL
    if permits_restart(layout, pod.replica.role, code):
        return policies.Cause.RETRYABLE_EXIT
    return policies.Cause.PERMANENT_EXIT


def permits_restart(layout: layout.Layout, role: types.Role, code: int) -> bool:
    """Whether an exit code may be run again, by the role's restartPolicy or the exit contract."""
    match layout.specs[role].restart_policy:
        case types.RestartPolicy.NEVER:
            return False
        case types.RestartPolicy.EXIT_CODE:
            if layout.job.spec.trainer is not None and code in _CONTRACT:
                return code not in _FINAL
            return code < 0 or code >= _FIRST_SIGNAL_CODE
        case types.RestartPolicy.ALWAYS | types.RestartPolicy.ON_FAILURE:
            return True
        case None:
            return code not in _FINAL
