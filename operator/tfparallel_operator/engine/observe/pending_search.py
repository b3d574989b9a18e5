"""Searches Events and claims for the reason why a pod waits, if its status does not say so.

To watch all Events would cost more than everything else that the operator reads. For each role, the
search looks at one pod without a known cause, once a minute, and at one pod a second for all jobs
together. The namespaces take turns, so that thousands of waiting jobs of one namespace do not delay
the search for another.
"""

import collections
import dataclasses
import datetime
import logging
from collections.abc import Iterable, Mapping, Sequence

from tfparallel_operator import wall_clock
from tfparallel_operator.api import types
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import observation, pending_reasons
from tfparallel_operator.engine.observe.job_memory import JobMemories, Search
from tfparallel_operator.engine.workqueue import queue, turns
from tfparallel_operator.engine.workqueue.timers import Timers

_LOG = logging.getLogger(__name__)

FIRST_LOOK = datetime.timedelta(seconds=30)
"""How long a pod waits before the search begins, because most pods have started by then."""

NEXT_LOOK = datetime.timedelta(seconds=60)

SPACING = datetime.timedelta(seconds=1)
"""Seconds between two searches, for all jobs together."""

PATIENCE = datetime.timedelta(seconds=10)
"""How long a job may leave its turn unused, for example because its reconciles fail."""

_CLAIMS = 4
"""Maximum number of claims of a pod that are read, each with two requests."""


_Place = tuple[queue.Key, types.Role]
"""The job and the role of a search."""


class PendingSearch:
    """Finds in Events and claims why pods wait."""

    def __init__(
        self,
        api: client.Client,
        timers: Timers[queue.Key],
        clock: wall_clock.Clock,
        memories: JobMemories,
    ) -> None:
        self._api = api
        self._timers = timers
        self._clock = clock
        self._memories = memories
        self._turns: turns.Turns[_Place] = turns.Turns()
        """The searches that are due."""
        self._free_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    async def find_reasons(
        self, key: queue.Key, pods: tuple[observation.Pod, ...]
    ) -> Mapping[str, str]:
        """Return why pods wait whose status does not say so, by uid. Each role has at most one."""
        by_role, now, memory = _group_silent(pods), self._clock(), self._memories.recall(key)
        earlier = memory.searches
        memory.searches = searches = {
            role: _renew(earlier.get(role), silent, now) for role, silent in by_role.items()
        }
        self.give_up(key, earlier.keys() - searches.keys())
        for role, search in searches.items():
            if search.next_look > now:
                self.give_up(key, (role,))
            elif self._takes_turn((key, role), now):
                search.next_look = now + NEXT_LOOK
                await self._look(key.namespace, search, by_role[role])
            if search.next_look > now:
                self._timers.set(key, search.next_look)
        return {search.uid: search.reason for search in searches.values() if search.reason}

    def _takes_turn(self, turn: _Place, now: datetime.datetime) -> bool:
        """Whether a due search may run now. If not, its job is reconciled when it may."""
        self._turns.add(turn[0].namespace, turn)
        if self._turns.first != turn and now - self._free_at >= PATIENCE:
            self._turns.put_off()
            self._free_at = now
        has_turn = self._turns.first == turn and now >= self._free_at
        if has_turn:
            self._turns.take()
            self._free_at = now + SPACING
        self._wake_first()
        return has_turn

    def give_up(self, key: queue.Key, roles: Iterable[types.Role]) -> None:
        """Remove the searches of a job from the turns."""
        first = self._turns.first
        for role in roles:
            self._turns.discard(key.namespace, (key, role))
        if self._turns.first != first:
            self._wake_first()

    def _wake_first(self) -> None:
        """Reconcile the job whose turn it is, as soon as its search may read."""
        if self._turns.first is not None:
            self._timers.set(self._turns.first[0], max(self._free_at, self._clock()))

    async def _look(
        self, namespace: str, search: Search, silent: Sequence[observation.Pod]
    ) -> None:
        """Read the Events and claims of a search's pod.

        If they name no cause, the next search looks at another pod.

        Pods of one role may wait for different reasons. One pulls its image, for example, and
        another has no volume.
        """
        [position] = [index for index, pod in enumerate(silent) if pod.uid == search.uid]
        search.reason = await self._find_words(namespace, silent[position], search.reason)
        if not search.reason:
            search.uid = silent[(position + 1) % len(silent)].uid

    async def _find_words(self, namespace: str, pod: observation.Pod, before: str) -> str:
        """Return the message that names the cause, or the last one if nothing can be read."""
        try:
            events = await self._read_events(namespace, f"regarding.uid={pod.uid}")
            claims = [] if pod.node else await self._read_unbound_claims(namespace, pod.name)
            for claim in claims:
                regarding = f"regarding.kind=PersistentVolumeClaim,regarding.name={claim.name}"
                events += await self._read_events(namespace, regarding)
        except errors.ApiError as error:
            _LOG.info("why %s waits cannot be looked for: %s", pod.name, error)
            return before
        pod_view = pending_reasons.WaitingPod(pod.name, pod.waiting, pod.node)
        reason = pod_view.find_words(events, claims)
        return "" if reason == pod.waiting else reason

    async def _read_events(self, namespace: str, fields: str) -> list[pending_reasons.Event]:
        # One page is enough: people may write many Events about a pod, and large ones.
        page = await anext(self._api.pages(resources.EVENTS, namespace, fields=fields))
        return pending_reasons.parse_events(page.items)

    async def _read_unbound_claims(self, namespace: str, name: str) -> list[pending_reasons.Claim]:
        pod = await self._api.get(resources.PODS.path(namespace, name))
        mounted = [
            volume.get("persistentVolumeClaim") for volume in pod["spec"].get("volumes") or ()
        ]
        claims = []
        for source in list(filter(None, mounted))[:_CLAIMS]:
            path = resources.CLAIMS.path(namespace, source["claimName"])
            claims.append(pending_reasons.parse_claim(await self._api.get(path)))
        return [claim for claim in claims if not claim.is_bound]


def explain(
    pods: tuple[observation.Pod, ...], reasons: Mapping[str, str]
) -> tuple[observation.Pod, ...]:
    """Return pods with the reasons why they wait, which are given by uid."""
    if not reasons:
        return pods
    return tuple(
        dataclasses.replace(pod, waiting=reasons[pod.uid]) if pod.uid in reasons else pod
        for pod in pods
    )


def _group_silent(
    pods: tuple[observation.Pod, ...],
) -> Mapping[types.Role, Sequence[observation.Pod]]:
    """Return the waiting pods whose status names no cause, by role."""
    by_role = collections.defaultdict(list)
    for pod in pods:
        is_waiting = pod.phase is observation.Phase.PENDING and not pod.deleting
        if is_waiting and pending_reasons.lacks_cause(pod.waiting, bool(pod.node)):
            by_role[pod.replica.role].append(pod)
    return by_role


def _renew(
    search: Search | None, silent: Sequence[observation.Pod], now: datetime.datetime
) -> Search:
    """Return the search, or a new one if its pod no longer waits or names the cause itself."""
    if search is not None and any(pod.uid == search.uid for pod in silent):
        return search
    return Search(silent[0].uid, now + FIRST_LOOK)
