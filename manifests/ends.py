"""The table of docs/reference/ends.md: how a pod can end."""

from collections.abc import Iterable

from testing import pages
from testing.operator import ends as examples
from tfparallel_operator.api import policies
from tfparallel_operator.core import pod_end_signs, pod_ends, remedies
from tfparallel_operator.core.life import failure
from tfparallel_operator.engine.observe import records


def table() -> str:
    """Return a row for each way, in the order in which they are tried."""
    rows = []
    for end in pod_ends.TABLE:
        counter, pause = _RESTARTS[_is_final(end), end.cause is None or end.cause.bounded]
        pause = "from the first" if end.cause is policies.Cause.INFRASTRUCTURE else pause
        rows.append(
            (
                f'<a id="{end.name}"></a>{end.meaning}',
                _signs(end),
                _cause(end),
                counter,
                pause,
                remedies.BY_END.get(end.name) or _remedy_of_words(end),
                end.source,
            )
        )
    head = ("what happened", "what Kubernetes writes", "cause", "counter", "pause", "what to do")
    return pages.table((*head, "source"), rows)


_RESTARTS = {
    (False, True): ("`restarts.failure`", "from the second"),
    (False, False): ("`restarts.disruption`", "from the second"),
    (True, True): ("none: the job fails", ""),
}
"""Counter and pause, by whether the job fails at once and whether restarts are bounded."""


def _is_final(end: pod_end_signs.End) -> bool:
    return end.cause is policies.Cause.PERMANENT_EXIT


def _cause(end: pod_end_signs.End) -> str:
    cause = "by `restartPolicy`" if end.cause is None else f"`{end.cause}`"
    return f"{cause}; counts for the node" if end.of_node else cause


def _signs(end: pod_end_signs.End) -> str:
    """Say what of a pod's status a row looks at."""
    parts = [f"reason {_either(end.reasons)}"] if end.reasons else []
    if end.begins:
        parts.append(f"message {_either(f'{begin.rstrip()} …' for begin in end.begins)}")
    if end.disrupted is not None:
        parts.append("`DisruptionTarget`" if end.disrupted else "no `DisruptionTarget`")
    if end.deleting:
        parts.append("`deletionTimestamp`")
    if end.container_reasons:
        parts.append(f"container: reason {_either(end.container_reasons)}")
    if end.codes:
        parts.append(f"exit code {_either(str(int(code)) for code in end.codes)}")
    if end.of_source:
        parts.append("of the init container `tfparallel-source`")
    return ", ".join(parts) or "any other exit code"


def _either(alternatives: Iterable[str]) -> str:
    return " or ".join(f"`{word}`" for word in alternatives)


def _remedy_of_words(end: pod_end_signs.End) -> str:
    """Return the remedy that follows from the words of an example, or from the exit code."""
    pod = records.pod(examples.pod(end.name, examples.EXAMPLES[end.name][0]))
    if pod is None or end is pod_ends.EXITED:
        return "See [exit codes](reasons.md#exit-codes)." if end is pod_ends.EXITED else ""
    return failure.Loss(pod.replica, policies.Cause.STALL, pod.exit, pod=pod).remedy
