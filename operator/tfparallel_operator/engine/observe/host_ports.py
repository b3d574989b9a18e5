"""Sets ports of nodes aside for jobs on their nodes' network: no two jobs get the same."""

from tfparallel_operator.api import names
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.engine.observe import jobs

_ENDED = (names.State.SUCCEEDED.value, names.State.FAILED.value)


class HostPorts:
    """Finds ports that no job has. A job's status keeps its ports: they outlive the operator."""

    def __init__(self, known: jobs.Jobs) -> None:
        self._jobs = known
        self._promised: dict[str, range] = {}
        """By uid: ports of jobs whose status does not have them yet."""

    def find(self, uid: str, count: int) -> int | None:
        """Return the first of so many free ports in a row for a job; None when there are none."""
        taken = self._taken()
        self._promised = {each: taken[each] for each in self._promised if each in taken}
        if uid in taken:
            return self._extended(uid, count, taken)
        first = host_network.FIRST_PORT
        for other in sorted(taken.values(), key=lambda ports: ports.start):
            if first + count <= other.start:
                break
            first = max(first, other.stop)
        if first + count > host_network.END_PORT:
            return None
        self._promised[uid] = range(first, first + count)
        return first

    def _extended(self, uid: str, count: int, taken: dict[str, range]) -> int | None:
        """Return the first port of a job that has some, with those that follow up to a count."""
        first = taken[uid].start
        wider = range(first, max(taken[uid].stop, first + count))
        others = (ports for other, ports in taken.items() if other != uid)
        if wider.stop > host_network.END_PORT or any(
            ports.start < wider.stop and wider.start < ports.stop for ports in others
        ):
            return None
        self._promised[uid] = wider
        return first

    def _taken(self) -> dict[str, range]:
        """Return the ports of every job that has not ended, by its uid."""
        ports_of = {}
        for body in self._jobs.bodies():
            uid, status = body["metadata"]["uid"], body.get("status") or {}
            ports = status.get("hostPorts")
            if status.get("state") in _ENDED:
                continue
            promised = self._promised.get(uid)
            if ports is not None and (promised is None or len(promised) < ports["count"]):
                ports_of[uid] = range(ports["first"], ports["first"] + ports["count"])
            elif promised is not None:
                ports_of[uid] = promised
        return ports_of
