"""Signs of how a pod ended, and what a row of the table of ends looks at. Pure."""

import dataclasses

from tfparallel_operator.api import policies
from tfparallel_operator.core import observation

_LONGEST = 64
"""Of the words that rows look at: what a tenant writes is kept no longer."""


@dataclasses.dataclass(frozen=True, slots=True)
class Signs:
    """What rows look at."""

    reason: str
    """Of the pod's status, else of its condition DisruptionTarget."""
    message: str
    """How the message of that reason begins."""
    disrupted: bool
    """Whether the condition DisruptionTarget is true."""
    deleting: bool
    """Whether there is a deletion timestamp."""
    container_reason: str
    """Of the container's end."""
    code: int | None
    """Exit code of the container; None: it has not ended."""
    of_source: bool
    """Whether it is the init container that fetches the source."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One way in which a pod ends."""

    name: str
    """The key of its remedy, and of its row in the documentation."""
    meaning: str
    """What has happened, as a sentence."""
    source: str
    """Where Kubernetes or a runtime writes it."""
    phrase: str = ""
    """What became of the pod, to stand behind its name; empty: its exit says it."""
    cause: policies.Cause | None = None
    """Why the replica was lost; None: it failed, and the role's restartPolicy decides."""
    asks: bool = False
    """Whether the program asks to be started again, which it may do while training progresses."""

    reasons: tuple[str, ...] = ()
    """Reasons that fit; * stands for any rest; empty: any."""
    begins: tuple[str, ...] = ()
    """Beginnings of the message that fit; empty: any."""
    disrupted: bool | None = None
    """Whether the condition DisruptionTarget is true; None: it does not matter."""
    deleting: bool = False
    """Whether the pod has to be deleted."""
    container_reasons: tuple[str, ...] = ()
    """Reasons of the container that fit; empty: any."""
    codes: tuple[int, ...] = ()
    """Exit codes that fit; empty: any."""
    of_source: bool = False
    """Whether the container has to be the init container that fetches the source."""

    @property
    def of_pod(self) -> bool:
        """Whether the pod was ended, however its program ended then."""
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
    """Return reason and message of a pod's end, in the words of who ended it."""
    if not pod.reason and pod.exit is not None and pod.exit.code < 0:
        return pod.exit.reason, pod.exit.message
    return pod.reason, pod.message


def _fits(reason: str, pattern: str) -> bool:
    return reason.startswith(pattern[:-1]) if pattern.endswith("*") else reason == pattern
