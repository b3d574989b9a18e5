"""How replicas ended, as evidence. Pure."""

from collections.abc import Iterator

from tfparallel.diagnosis import findings
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import failure


def list_exits(facts: findings.Facts) -> Iterator[findings.Evidence]:
    """Yield the newest failed exit of each role."""
    for role, counts in facts.status.replicas.items():
        last = counts.last_exit
        if last is not None:
            ago = "" if last.time is None else f" {facts.age(last.time)} ago"
            limit = _describe_limit(role, counts, facts) if _is_killed(last) else ""
            text = f"{last.replica} exited with {last.code} ({last.reason}){ago}{limit}"
            yield findings.Evidence(findings.Source.EXIT, text)


def _is_killed(last: job_status.LastExit) -> bool:
    return last.reason == failure.OOM_KILLED


def _describe_limit(role: str, counts: job_status.ReplicaStatus, facts: findings.Facts) -> str:
    """Return the limit of memory that a replica had when it ran out of it; empty: unknown."""
    last = counts.last_exit
    pods = (one for one in facts.replicas if last is not None and one.pod == last.replica)
    ended = next((one for one in pods if one.exit_code is not None), None)
    # The next attempt's pod has the name too, and with runPolicy.outOfMemory another limit.
    if ended is not None:
        limit = ended.memory_limit
    elif counts.memory_growths:
        return ""
    else:
        template = facts.job.roles.get(role, {}).get("template") or {}
        containers = template.get("spec", {}).get("containers", ())
        trains = (one for one in containers if one.get("name") == names.CONTAINER)
        resources = next((one.get("resources") or {} for one in trains), None)
        if resources is None:
            return ""
        limit = str((resources.get("limits") or {}).get("memory", ""))
    if not limit:
        return ", without limits.memory: its node ran out of memory"
    return f", with limits.memory {limit}"
