"""Why a pod waits, where its status does not say: Events and claims, read a few at a time.

Following all Events would cost more than all else that the operator reads. It looks once a minute
for the first pod of a job that names no cause, and once a second for all such jobs together.
"""

import dataclasses
import datetime
import logging
from collections.abc import Mapping

from tfparallel_operator import wall_clock
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
    """The search for why a pod waits."""

    uid: str
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
        self._searches: dict[queue.Key, _Search] = {}
        self._free_at = datetime.datetime.min.replace(tzinfo=datetime.UTC)

    def forget(self, key: queue.Key) -> None:
        """Forget a job."""
        self._searches.pop(key, None)

    async def of(self, key: queue.Key, pods: tuple[observation.Pod, ...]) -> Mapping[str, str]:
        """Return why the first pod of a job that waits does, by uid, if its status does not say."""
        phase = observation.Phase.PENDING
        pod = next((one for one in pods if one.phase is phase and not one.deleting), None)
        if pod is None or not _waiting(pod).lacks_cause:
            self.forget(key)
            return {}
        now, search = self._clock(), self._searches.get(key)
        if search is None or search.uid != pod.uid:
            search = self._searches[key] = _Search(pod.uid, now + FIRST_LOOK)
        if search.next_look <= now and self._has_turn(search, now):
            search.words = await self._find_words(key.namespace, pod, search.words)
            search.next_look, search.has_turn = now + NEXT_LOOK, False
        self._timers.set(key, search.next_look)
        return {pod.uid: search.words} if search.words else {}

    def _has_turn(self, search: _Search, now: datetime.datetime) -> bool:
        """Whether a look that is due may be now; else it has its place after those of others."""
        if not search.has_turn:
            search.has_turn = True
            search.next_look = max(now, self._free_at)
            self._free_at = search.next_look + SPACING
        return search.next_look <= now

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
        words = _waiting(pod).find_words(events, claims)
        return "" if words == pod.waiting else words

    async def _read_events(self, namespace: str, fields: str) -> list[waits.Event]:
        page = await self._api.page(resources.EVENTS, namespace, fields=fields)
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


def _waiting(pod: observation.Pod) -> waits.WaitingPod:
    return waits.WaitingPod(pod.name, pod.waiting, pod.node)
