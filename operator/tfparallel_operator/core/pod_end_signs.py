"""The signs of how a pod ended, and the rows of the table of ends, which match them. Pure."""

import dataclasses

from tfparallel_operator.api import policies
from tfparallel_operator.core import observation

_LONGEST = 64
"""Maximum length of the texts that rows match, because a tenant may write any text."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signs:
    """The signs that rows match."""

    reason: str
    """The reason in the pod's status, or else of its condition DisruptionTarget."""
    message: str
    """The beginning of the message of that reason."""
    disrupted: bool
    """Whether the condition DisruptionTarget is true."""
    deleting: bool
    """Whether the pod has a deletion timestamp."""
    container_reason: str
    """The reason of the container's end."""
    code: int | None
    """Exit code of the container; None: it has not ended."""
    of_source: bool
    """Whether the init container that fetches the source has ended."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """A way in which a pod ends: a row of the table."""

    name: str
    """The key of its remedy, and of its row in the documentation."""
    meaning: str
    """What has happened, as a sentence."""
    source: str
    """Where Kubernetes or a runtime writes it."""
    phrase: str = ""
    """What happened to the pod, as words that follow its name; empty: its exit says so."""
    cause: policies.Cause | None = None
    """Why the replica was lost; None: it failed, and the role's restartPolicy decides."""
    of_node: bool = False
    """Whether the node may be at fault, so that it counts as a loss of the node."""
    asks: bool = False
    """Whether the program asks to be started again, which it may do while training progresses."""

    reasons: tuple[str, ...] = ()
    """Reasons that match, in which * stands for any ending; empty: any reason."""
    begins: tuple[str, ...] = ()
    """Beginnings of messages that match; empty: any message."""
    disrupted: bool | None = None
    """Whether the condition DisruptionTarget must be true; None: it does not matter."""
    deleting: bool = False
    """Whether the pod has to be deleted."""
    container_reasons: tuple[str, ...] = ()
    """Reasons of the container that match; empty: any reason."""
    codes: tuple[int, ...] = ()
    """Exit codes that match; empty: any code."""
    of_source: bool = False
    """Whether the container has to be the init container that fetches the source."""

    @property
    def of_pod(self) -> bool:
        """Whether something outside ended the pod, however its program exited then."""
        return bool(self.reasons or self.begins or self.disrupted or self.deleting)

    def matches(self, signs: Signs) -> bool:
        """Whether a pod has ended, or is being ended, in this way."""
        return (
            (not self.reasons or any(_fits(signs.reason, word) for word in self.reasons))
            and signs.message.startswith(self.begins or "")
            and self.disrupted in (None, signs.disrupted)
            and self.deleting <= signs.deleting
            and (not self.container_reasons or signs.container_reason in self.container_reasons)
            and (not self.codes or signs.code in self.codes)
            and self.of_source <= signs.of_source
        )


def read(pod: observation.Pod) -> Signs:
    """Return the signs of a pod."""
    reason, message = words(pod)
    ended = pod.exit
    return Signs(
        reason[:_LONGEST],
        message[:_LONGEST],
        pod.disrupted,
        pod.deleting,
        "" if ended is None else ended.reason[:_LONGEST],
        None if ended is None else ended.code,
        ended is not None and ended.of_source,
    )


def words(pod: observation.Pod) -> tuple[str, str]:
    """Return the reason and the message of a pod's end, from the component that ended it."""
    if not pod.reason and pod.exit is not None and pod.exit.code < 0:
        return pod.exit.reason, pod.exit.message
    return pod.reason, pod.message


def _fits(reason: str, pattern: str) -> bool:
    return reason.startswith(pattern[:-1]) if pattern.endswith("*") else reason == pattern
