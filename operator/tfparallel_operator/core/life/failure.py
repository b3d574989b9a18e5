"""Losses of replicas: which there are, what caused them, and which of them is the root."""

import dataclasses
import datetime

from tfparallel_operator.api import job_status, names, policies, types
from tfparallel_operator.core import (
    ends,
    installation,
    observation,
    remedies,
    replicas,
    signs,
)
from tfparallel_operator.core.layout import Layout
from tfparallel_operator.core.status import conditions
from tfparallel_operator.core.view import View
from tfparallel_trainer.contract import exits, plain_text

_FIRST_SIGNAL_CODE = 128
_CONTRACT = frozenset(exits.Exit)
_FINAL = frozenset(code for code in exits.Exit if not code.retryable)
"""Codes that would come again, of people's own commands too: their scripts may call the trainer's
`fit`. Codes outside the contract, such as those of signals, may be retried."""
_LAST = datetime.datetime.max.replace(tzinfo=datetime.UTC)


PATIENCE = 5
"""Restarts without progress that a program may ask for, before each counts as a failure."""


@dataclasses.dataclass(frozen=True, slots=True)
class Loss:
    """A replica that ended without success, whose pod is gone, or that does not get on."""

    replica: replicas.Replica
    cause: policies.Cause
    exit: observation.Exit | None
    reason: str = "vanished"
    """What became of it, when it has no exit."""
    of_waiting_gang: bool = False
    """Whether it was lost before any pod of its gang had a place."""
    pod: observation.Pod | None = None
    """Its pod, if that has ended."""

    @property
    def end(self) -> signs.End:
        """How its pod ended; as by itself where there is none."""
        return ends.EXITED if self.pod is None else ends.find(self.pod)

    @property
    def code(self) -> int:
        """The exit code that decides; -1 where none does."""
        return _decisive_code(self.end, self.exit)

    def describe(self, job_name: str) -> str:
        """Say which replica was lost, and how, with what it said itself of its end."""
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
    def remedy(self) -> str:
        """What to do about it, where that is known and the replica did not say so itself."""
        if self.end.name in remedies.BY_END:
            return remedies.BY_END[self.end.name]
        if self.end.phrase and self.pod is not None:
            return remedies.find(quote(self.pod))
        if self.exit is None:
            return remedies.find(self.reason)
        return remedies.find_for_exit(self.exit.code, self.exit.reason, self.exit.message)

    def record(self, job_name: str) -> job_status.Failure:
        """Return it as the status has it, with a remedy also where the replica said one itself."""
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
    """Return what was said of a pod's end, to stand behind the operator's own words."""
    reason, message = signs.words(pod)
    if not reason and pod.exit is not None and not ends.find(pod).of_pod:
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

    `restarts` is how many there are since training made progress, the next one included.

    When one replica is lost its peers end too, so only the first loss counts. One of training
    comes before the evaluator's, a disruption before a failure, an exit before the exits of peers
    that say they lost someone, then the earliest. A pod that is being taken, and still runs, is no
    loss by itself; it is the root of the losses of a gang whose other members have ended.
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
            and ends.find(pod).cause is policies.Cause.DISRUPTION
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
        is_conclusive = loss.exit.code in _FINAL or len(view.layout.all_replicas) == 1
        waits = settling if final and view.layout.is_gang and not is_conclusive else None
    return None if waits is None else loss.exit.finished_at + waits


def cause(layout: Layout, pod: observation.Pod, restarts: int = 1) -> policies.Cause:
    """Say why a pod that ended without success did."""
    end = ends.find(pod)
    if end.cause is not None and not (end.asks and restarts > PATIENCE):
        return end.cause
    if permits_restart(layout, pod.replica.role, _decisive_code(end, pod.exit)):
        return policies.Cause.RETRYABLE_EXIT
    return policies.Cause.PERMANENT_EXIT


def _decisive_code(end: signs.End, ended: observation.Exit | None) -> int:
    """Return the exit code that decides; the program of a pod that was ended has chosen none."""
    return -1 if ended is None or end.of_pod else ended.code


def permits_restart(layout: Layout, role: types.Role, code: int) -> bool:
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
