"""How replicas ended, as evidence. Pure."""

import dataclasses
from collections.abc import Iterator

from tfparallel.diagnosis import findings
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import pod_ends
from tfparallel_operator.core.pods import avoided_nodes
from tfparallel_trainer.contract import exits

_KILLED = ("", "Error", exits.describe(137))
"""Reasons of a SIGKILL of unknown origin. The kubelet may notice too late that memory was short."""


def list_exits(facts: findings.JobSnapshot) -> Iterator[findings.Evidence]:
    """Yield the newest failed exit of each role."""
    for role, counts in facts.status.replicas.items():
        if counts.last_exit is not None:
            text = _describe_exit(role, counts, counts.last_exit, facts)
            yield findings.Evidence(findings.EvidenceSource.EXIT, text)


def add_node_losses(
    facts: findings.JobSnapshot, diagnosis: findings.Diagnosis
) -> findings.Diagnosis:
    """Add the losses for which nodes may be at fault, as evidence."""
    losses = avoided_nodes.describe(facts.status)
    if not losses:
        return diagnosis
    fact = findings.Evidence(findings.EvidenceSource.OPERATOR, f"losses by node: {losses}")
    return dataclasses.replace(diagnosis, evidence=(*diagnosis.evidence, fact))


def describe_newest(facts: findings.JobSnapshot) -> tuple[str, job_status.LastExit] | None:
    """Return the newest failed exit of all roles, in words and as it is; None: there is none."""
    newest: tuple[str, job_status.LastExit] | None = None
    for role, counts in facts.status.replicas.items():
        last, before = counts.last_exit, None if newest is None else newest[1].time
        if last is not None and last.time is not None and (before is None or before < last.time):
            newest = _describe_exit(role, counts, last, facts), last
    return newest


def _describe_exit(
    role: str,
    counts: job_status.ReplicaStatus,
    last: job_status.LastExit,
    facts: findings.JobSnapshot,
) -> str:
    ago = "" if last.time is None else f" {facts.age(last.time)} ago"
    memory = _describe_memory(last, _find_limit(role, counts, facts))
    how = f"exited with {last.code} ({last.reason})" if last.code >= 0 else f"ended: {last.reason}"
    return f"{last.replica} {how}{ago}{memory}"


def _describe_memory(last: job_status.LastExit, limit: str | None) -> str:
    """Return the limit of a replica that may have run out of memory."""
    if limit and (
        last.reason == pod_ends.OOM_KILLED or (last.code == 137 and last.reason in _KILLED)
    ):
        return f", with limits.memory {limit}"
    if limit == "" and last.reason == pod_ends.OOM_KILLED:
        return ", without limits.memory: its node ran out of memory"
    return ""


def _find_limit(
    role: str, counts: job_status.ReplicaStatus, facts: findings.JobSnapshot
) -> str | None:
    """Return the limit of memory of the replica that ended last; empty: none; None: unknown."""
    last = counts.last_exit
    pods = (
        replica for replica in facts.replicas if last is not None and replica.pod == last.replica
    )
    ended = next((pod for pod in pods if pod.exit_code is not None), None)
    if ended is not None:
        return ended.memory_limit
    # The next attempt's pod has the name too, and with runPolicy.outOfMemory another limit.
    layout = facts.job.layout
    specs = {} if layout is None else {kind.value: spec for kind, spec in layout.specs.items()}
    for container in specs[role].pod_spec.get("containers", ()) if role in specs else ():
        if container.get("name") == names.CONTAINER and not counts.memory_growths:
            limits = (container.get("resources") or {}).get("limits") or {}
            return str(limits.get("memory", ""))
    return None
