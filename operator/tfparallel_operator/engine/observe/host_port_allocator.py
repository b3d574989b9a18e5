"""Reserves ports of nodes for jobs on their nodes' network, so that no two jobs share a port.

A job has ports while it has pods, or is about to create some: see `core.life.host_ports`.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.core import installation
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.engine.observe import jobs, records

_ENDED = (names.State.SUCCEEDED.value, names.State.FAILED.value)


@dataclasses.dataclass(frozen=True, slots=True)
class _Block:
    """The ports of a job."""

    namespace: str
    ports: range


class HostPortAllocator:
    """Finds ports that no job has.

    A job's status records its ports, so they outlive the operator.
    """

    def __init__(
        self, job_index: jobs.Jobs, most_of_namespace: int = installation.HOST_PORTS_OF_NAMESPACE
    ) -> None:
        self._jobs = job_index
        self._most_of_namespace = most_of_namespace
        self._promised: dict[str, range] = {}
        """Reserved ports that no status records yet, by the uid of the job."""

    def find(self, job: records.Owner, count: int) -> int | None:
        """Return the first of so many consecutive free ports; None: there are not enough."""
        blocks = self._taken()
        self._promised = {uid: blocks[uid].ports for uid in self._promised if uid in blocks}
        if count > self._left(job, blocks):
            return None
        if job.uid in blocks:
            return self._extended(job.uid, count, blocks)
        first = host_network.FIRST_PORT
        for other in sorted(
            (block.ports for block in blocks.values()), key=lambda ports: ports.start
        ):
            if first + count <= other.start:
                break
            first = max(first, other.stop)
        if first + count > host_network.END_PORT:
            return None
        self._promised[job.uid] = range(first, first + count)
        return first

    def left(self, job: records.Owner) -> int:
        """Return how many ports a job may have, given those of the namespace's other jobs."""
        return self._left(job, self._taken())

    def release(self, uid: str) -> None:
        """Cancel a reservation, because the job creates no pods now."""
        self._promised.pop(uid, None)

    def _left(self, job: records.Owner, blocks: dict[str, _Block]) -> int:
        others = (
            len(block.ports)
            for uid, block in blocks.items()
            if block.namespace == job.namespace and uid != job.uid
        )
        return max(0, self._most_of_namespace - sum(others))

    def _extended(self, uid: str, count: int, blocks: dict[str, _Block]) -> int | None:
        """Return the first port of a job that has some, if the ports that follow are free too."""
        first = blocks[uid].ports.start
        wider = range(first, max(blocks[uid].ports.stop, first + count))
        others = (block.ports for other, block in blocks.items() if other != uid)
        if wider.stop > host_network.END_PORT or any(
            ports.start < wider.stop and wider.start < ports.stop for ports in others
        ):
            return None
        self._promised[uid] = wider
        return first

    def _taken(self) -> dict[str, _Block]:
        """Return the ports of every job that has not ended, by its uid."""
        blocks = {}
        for body in self._jobs.bodies():
            metadata, status = body["metadata"], body.get("status") or {}
            uid, namespace = metadata["uid"], metadata["namespace"]
            if status.get("state") in _ENDED:
                continue
            ports = _read_ports(status)
            promised = self._promised.get(uid)
            if ports and (promised is None or len(promised) < len(ports)):
                blocks[uid] = _Block(namespace, ports)
            elif promised is not None:
                blocks[uid] = _Block(namespace, promised)
        return blocks


def _read_ports(status: Mapping[str, Any]) -> range:
    """Return the ports in a status, or none if they are outside the range of ports for jobs."""
    ports = status.get("hostPorts") or {}
    first, count = ports.get("first", 0), ports.get("count", 0)
    is_ours = host_network.FIRST_PORT <= first <= first + count <= host_network.END_PORT
    return range(first, first + count) if is_ours else range(0)
