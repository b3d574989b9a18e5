"""Lists the losses of replicas, their causes, and the root cause among them."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import (
    installation,
    observation,
    pod_end_signs,
    pod_ends,
    remedies,
    replicas,
)
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View
from tfparallel_trainer.contract import exits, hangs, plain_text

_FIRST_SIGNAL_CODE = 128
_CONTRACT = frozenset(exits.Exit)
_FINAL = frozenset(code for code in exits.Exit if not code.retryable)
"""Exit codes that a restart would repeat.

They count for people's own commands too, because a script may call the trainer's `fit`. Codes
outside the contract, such as those of signals, may be retried.
"""
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


HANG_BYTES = 512
"""Maximum bytes of each part of a hang in a status."""

PATIENCE = 5
"""Restarts without progress that a program may request before each counts as a failure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A replica that ended without success, whose pod is gone, or that makes no progress."""

    replica: replicas.Replica
    cause: policies.Cause
    exit: observation.Exit | None
    reason: str = "vanished"
    """What happened to the replica, if it has no exit."""
    of_waiting_gang: bool = False
    """Whether the replica was lost before any pod of its gang was scheduled."""
    pod: observation.Pod | None = None
    """The replica's pod, if it has ended."""

    @property
    def end(self) -> pod_end_signs.End:
        """How the replica's pod ended. Without a pod, it counts as an exit of the program."""
        return pod_ends.EXITED if self.pod is None else pod_ends.find(self.pod)

    @property
    def code(self) -> int:
        """The exit code that decides; -1: none does."""
        return _decisive_code(self.end, self.exit)

    def describe(self, job_name: str) -> str:
        """Say which replica was lost, and how, with its own message about its end."""
        name = self.replica.pod_name(job_name)
        if self.end.phrase and self.pod is not None:
            sentence = f"{name} {self.end.phrase}{quote(self.pod)}"
            if self.end.deleting and self.exit is not None and self.exit.code >= 0:
                sentence = f"{sentence}, and {_describe_exit(self.exit)}"
            return sentence
        if self.exit is not None and self.exit.of_source:
            name = f"{name}: init container {names.SOURCE_CONTAINER}"
        if self.exit is None:
            return f"{name} {self.reason}"
        if self.exit.code < 0:
            return f"{name} ended: {self.exit.reason} {self.exit.message}".rstrip()
        return f"{name} {_describe_exit(self.exit)}"

    @property
    def hang(self) -> hangs.Hang | None:
        """Where a training replica hung, if its trainer ended for it."""
        if self.cause is not policies.Cause.STALL or self.exit is None or not _trains(self.replica):
            return None
        return hangs.find(self.exit.message)

    @property
    def remedy(self) -> str:
        """The remedy, if it is known and the replica's own message does not contain it."""
        if self.end.name in remedies.BY_END:
            return remedies.BY_END[self.end.name]
        if self.end.phrase and self.pod is not None:
            return remedies.find(quote(self.pod))
        if self.exit is None:
            return remedies.find(self.reason)
        return remedies.find_for_exit(self.exit.code, self.exit.reason, self.exit.message)

    def record_hang(self, job_name: str) -> job_status.Hang | None:
        """Return where the replica hung for the status; None: it did not."""
        hang = self.hang
        if hang is None:
            return None
        return job_status.Hang(
            replica=self.replica.pod_name(job_name),
            after=plain_text.shorten(hang.after, HANG_BYTES),
            stack=plain_text.shorten(hang.stack, HANG_BYTES),
        )

    def record(self, job_name: str) -> job_status.Failure:
        """Return the loss for the status, with the remedy even if the replica's own message
        contains it."""
        ran = self.exit is not None and self.exit.code >= 0
        by_code = remedies.BY_EXIT_CODE.get(self.code, "") if ran else ""
        remedy = self.remedy or by_code
        return job_status.Failure(
            replica=self.replica.pod_name(job_name),
            cause=self.cause.value,
            exit_code=self.exit.code if self.exit is not None and ran else None,
            remedy=plain_text.shorten(remedy, conditions.REMEDY_BYTES),
        )


def quote(pod: observation.Pod) -> str:
    """Return what the pod's status says about its end, to follow the operator's own words."""
    reason, message = pod_end_signs.words(pod)
    if not reason and pod.exit is not None and not pod_ends.find(pod).of_pod:
        reason, message = pod.exit.reason, pod.exit.message
    sentence = remedies.shorten(message).rstrip(".")
    return "".join((f" ({reason})" if reason else "", f": {sentence}" if sentence else ""))


def _describe_exit(ended: observation.Exit) -> str:
    reason = f", {ended.reason}" if ended.reason not in ("", "Error") else ""
    sentence = f"exited with code {ended.code} ({exits.describe(ended.code)}{reason})"
    if ended.restarted:
        sentence = f"{sentence}, and its kubelet restarted it in place"
    message = remedies.shorten(ended.message).rstrip(".")
    return f"{sentence}: {message}" if message else sentence


def losses(view: View, restarts: int = 1) -> tuple[Loss, ...]:
    """List the losses of an attempt, the root cause first.

    `restarts` is the number of restarts since training made progress, including the next one. When
    one replica is lost, its peers end too, so only the root cause counts. A loss of a training
    replica comes before the evaluator's, and a disruption before a failure. An exit comes before
    the exits of peers that report a lost peer; then the earliest loss counts. A pod that the
    cluster is taking, and that still runs, is not a loss by itself. It is the root cause if other
    members of its gang have ended.
    """
    settled = view.ignored | view.completed
    losses = [
        Loss(pod.replica, cause(view.layout, pod, restarts), pod.exit, pod=pod)
        for pod in view.current.values()
        if pod.phase is observation.Phase.FAILED and pod.replica not in settled
    ]
    waits = view.is_waiting_gang
    losses += [
        Loss(replica, policies.Cause.DISRUPTION, None, of_waiting_gang=waits)
        for replica in view.vanished
    ]
    if view.layout.is_gang and any(_trains(loss.replica) for loss in losses):
        losses += [
            Loss(
                pod.replica,
                policies.Cause.DISRUPTION,
                None,
                f"is being deleted or evicted{quote(pod)}",
            )
            for pod in view.current.values()
            if _trains(pod.replica)
            and not pod.phase.ended
            and pod_ends.find(pod).cause is policies.Cause.DISRUPTION
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
    loss: Loss, view: View, settling: datetime.timedelta, *, final: bool
) -> datetime.datetime | None:
    """Return until when a loss may turn out to be the consequence of another one.

    If a replica lost a peer, the operator waits for the peer's own exit. If an answer is `final`,
    it ends a job whose replicas need each other. The operator then waits just as long for signs
    that the cluster took one of them, unless the trainer names the cause. None: the loss counts at
    once.
    """
    if loss.exit is None or loss.exit.finished_at is None or not loss.cause.bounded:
        return None
    if loss.exit.code == exits.Exit.PEER_LOST:
        all_ended = all(phase.ended for phase in view.phases.values())
        waits = None if all_ended else installation.SETTLING
    else:
        is_conclusive = loss.exit.code in _FINAL or len(view.layout.all_replicas) == 1
        waits = settling if final and view.layout.is_gang and not is_conclusive else None
    return None if waits is None else loss.exit.finished_at + waits


def cause(layout: Layout, pod: observation.Pod, restarts: int = 1) -> policies.Cause:
    """Return the cause of a pod's end without success."""
    end = pod_ends.find(pod)
    if end.cause is not None and not (end.asks and restarts > PATIENCE):
        return end.cause
    if permits_restart(layout, pod.replica.role, _decisive_code(end, pod.exit)):
        return policies.Cause.RETRYABLE_EXIT
    return policies.Cause.PERMANENT_EXIT


def _decisive_code(end: pod_end_signs.End, ended: observation.Exit | None) -> int:
    """Return the exit code that decides; -1 if there is none, or if the cluster ended the pod."""
    return -1 if ended is None or end.of_pod else ended.code


def permits_restart(layout: Layout, role: types.Role, code: int) -> bool:
    """Whether a restart may follow an exit code, by restartPolicy or the exit contract."""
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
