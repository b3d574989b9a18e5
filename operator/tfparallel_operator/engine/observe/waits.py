"""Why a pod waits, where its status does not say: Events and claims, read a few at a time.

Following all Events would cost more than all else that the operator reads. Of each role it looks at
one pod that names no cause, once a minute, and once a second for all jobs together.
"""

import collections
import dataclasses
import datetime
import logging
from collections.abc import Mapping, Sequence

from tfparallel_operator import wall_clock
from tfparallel_operator.api import types
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.core import observation, waits
from tfparallel_operator.engine.workqueue import queue, timers

_LOG = logging.getLogger(__name__)

FIRST_LOOK = datetime.timedelta(seconds=30)
"""How long a pod waits before its cause is looked for: most have started by then."""

NEXT_LOOK = datetime.timedelta(seconds=60)

SPACING = datetime.timedelta(seconds=1)
"""From one look to the next, of all jobs together."""

_CLAIMS = 4
"""Of a pod that are looked at: two requests each."""


@dataclasses.dataclass(slots=True)
class _Search:
    """The search for why the pods of a role wait."""

    uid: str
    """Of the pod that says why, or that the next look is for."""
    next_look: datetime.datetime
    has_turn: bool = False
    """Whether the next look has its place among those of other jobs."""
    words: str = ""


class Waits:
    """What Events and claims say of pods that wait."""

    def __init__(
        self, api: client.Client, timers: timers.Timers[queue.Key], clock: wall_clock.Clock
    ) -> None:
        self._api = api
        self._timers = timers
        self._clock = clock
        self._searches: dict[queue.Key, dict[types.Role, _Search]] = {}
        self._free_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    def forget(self, key: queue.Key) -> None:
        """Forget a job."""
        self._searches.pop(key, None)

    async def of(self, key: queue.Key, pods: tuple[observation.Pod, ...]) -> Mapping[str, str]:
        """Return why pods wait whose status does not say, by uid: of each role one at most."""
        by_role, known, now = _group_silent(pods), self._searches.pop(key, {}), self._clock()
        if not by_role:
            return {}
        searches = self._searches[key] = {
            role: _renew(known.get(role), silent, now) for role, silent in by_role.items()
        }
        for role, search in searches.items():
            if search.next_look <= now and self._has_turn(search, now):
                await self._look(key.namespace, search, by_role[role])
                search.next_look, search.has_turn = now + NEXT_LOOK, False
            self._timers.set(key, search.next_look)
        return {search.uid: search.words for search in searches.values() if search.words}

    def _has_turn(self, search: _Search, now: datetime.datetime) -> bool:
        """Whether a look that is due may be now; else it has its place after those of others."""
        if not search.has_turn:
            search.has_turn = True
            search.next_look = max(now, self._free_at)
            self._free_at = search.next_look + SPACING
        return search.next_look <= now

    async def _look(
        self, namespace: str, search: _Search, silent: Sequence[observation.Pod]
    ) -> None:
        """Look at the pod of a search; if nobody says why it waits, the next look is for another.

        Pods of one role may wait for different reasons: one pulls its image, another has no volume.
        """
        [place] = [place for place, pod in enumerate(silent) if pod.uid == search.uid]
        search.words = await self._find_words(namespace, silent[place], search.words)
        if not search.words:
            search.uid = silent[(place + 1) % len(silent)].uid

    async def _find_words(self, namespace: str, pod: observation.Pod, before: str) -> str:
        """Return the words that name a cause; those of the look before if nothing can be read."""
        try:
            events = await self._read_events(namespace, f"regarding.uid={pod.uid}")
            claims = [] if pod.node else await self._read_unbound_claims(namespace, pod.name)
            for claim in claims:
                regarding = f"regarding.kind=PersistentVolumeClaim,regarding.name={claim.name}"
                events += await self._read_events(namespace, regarding)
        except errors.ApiError as error:
            _LOG.info("why %s waits cannot be looked for: %s", pod.name, error)
            return before
        waiting = waits.WaitingPod(pod.name, pod.waiting, pod.node)
        words = waiting.find_words(events, claims)
        return "" if words == pod.waiting else words

    async def _read_events(self, namespace: str, fields: str) -> list[waits.Event]:
        # One page is enough: people may write many Events about a pod, and large ones.
        page = await anext(self._api.pages(resources.EVENTS, namespace, fields=fields))
        return waits.parse_events(page.items)

    async def _read_unbound_claims(self, namespace: str, name: str) -> list[waits.Claim]:
        pod = await self._api.get(resources.PODS.path(namespace, name))
        mounted = [one.get("persistentVolumeClaim") for one in pod["spec"].get("volumes") or ()]
        claims = []
        for source in list(filter(None, mounted))[:_CLAIMS]:
            path = resources.CLAIMS.path(namespace, source["claimName"])
            claims.append(waits.parse_claim(await self._api.get(path)))
        return [claim for claim in claims if not claim.is_bound]


def explain(
    pods: tuple[observation.Pod, ...], words: Mapping[str, str]
) -> tuple[observation.Pod, ...]:
    """Return pods with why they wait, by uid."""
    if not words:
        return pods
    return tuple(
        dataclasses.replace(pod, waiting=words[pod.uid]) if pod.uid in words else pod
        for pod in pods
    )


def _group_silent(
    pods: tuple[observation.Pod, ...],
) -> Mapping[types.Role, Sequence[observation.Pod]]:
    """Return the pods that wait and whose status names no cause, by role."""
    by_role = collections.defaultdict(list)
    for pod in pods:
        is_waiting = pod.phase is observation.Phase.PENDING and not pod.deleting
        if is_waiting and waits.lacks_cause(pod.waiting, bool(pod.node)):
            by_role[pod.replica.role].append(pod)
    return by_role


def _renew(
    search: _Search | None, silent: Sequence[observation.Pod], now: datetime.datetime
) -> _Search:
    """Return a search as it is, or another if its pod no longer waits or says why itself."""
    if search is not None and any(pod.uid == search.uid for pod in silent):
        return search
    return _Search(silent[0].uid, now + FIRST_LOOK)
