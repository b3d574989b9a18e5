"""An API server in memory whose answers take their time, and whose etcd may be restored."""

import asyncio
import itertools
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from testing.operator import memory_api
from tfparallel_operator.api_server import client, errors, lists, resources, streams

LONGEST_TURNS = 4
"""Turns of the event loop that anything takes on its way."""

AWAY_TURNS = 40
"""Turns in which the API server does not answer after a restore: who asked it has noticed."""

Copy = tuple[dict[str, client.Object], int]
"""What etcd holds, and its version."""


class RewindingApi(memory_api.MemoryApi):
    """Pages of a list are of one version; a watch from a version that is yet to come is silent."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._random = random.Random(seed)  # noqa: S311 (no secret)
        self._lists: dict[str, tuple[lists.Listing, int]] = {}
        self._list_numbers = itertools.count()
        self._epoch = 0
        """How often all watches were ended."""
        self.is_away = False
        self.page_size = 2

    async def page(
        self,
        resource: resources.Resource,
        namespace: str | None,
        selector: str = "",
        continue_token: str = "",
        fields: str = "",
        **form: Any,
    ) -> lists.Listing:
        await self._take_time()
        if continue_token:
            whole, start = self._lists[continue_token]
        else:
            size, self.page_size = self.page_size, 10_000
            try:
                whole = await super().page(resource, namespace, selector, "", fields)
            finally:
                self.page_size = size
            start = 0
        end = start + (form.get("limit") or self.page_size)
        continuation = str(next(self._list_numbers)) if end < len(whole.items) else ""
        self._lists[continuation] = whole, end
        await self._take_time()
        return lists.Listing(whole.items[start:end], whole.version, continuation)

    async def watch(
        self,
        resource: resources.Resource,
        namespace: str | None,
        version: str,
        selector: str = "",
        fields: str = "",
        **form: Any,
    ) -> AsyncIterator[streams.WatchEvent]:
        await self._take_time()
        epoch = self._epoch
        events = super().watch(resource, namespace, version, selector, fields)
        following = asyncio.ensure_future(anext(events))
        try:
            while epoch == self._epoch:
                changed = asyncio.ensure_future(self._changed.wait())
                await asyncio.wait((following, changed), return_when=asyncio.FIRST_COMPLETED)
                changed.cancel()
                if not following.done():
                    continue
                event = following.result()
                if int(event.object["metadata"]["resourceVersion"]) > int(version):
                    await self._take_time()
                    yield event
                following = asyncio.ensure_future(anext(events))
        finally:
            following.cancel()
        if self.is_away:
            raise errors.Unavailable("the connection broke")

    def end_watches(self) -> None:
        """End all watches, as the API server does from time to time."""
        self._epoch += 1
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def save(self) -> Copy:
        """Return a copy of what etcd holds, and its version."""
        return memory_api._copied(self._objects), self.version

    async def restore(self, copy: Copy, write: Callable[[], Awaitable[None]]) -> None:
        """Go on from a copy of etcd; return when the API server answers again.

        Others write before it answers us, so that the history may come past where it was.
        """
        self.is_away = True
        self.replace(copy)
        for _ in range(AWAY_TURNS):
            await asyncio.sleep(0)
        await write()
        self.is_away = False

    def replace(self, copy: Copy) -> None:
        """Go on from a copy of etcd, without a request that is not answered; all watches end."""
        objects, version = copy
        self._objects = memory_api._copied(objects)
        self._history = [entry for entry in self._history if entry[0] <= version]
        self._numbers = itertools.count(version + 1)
        self.end_watches()

    async def _take_time(self) -> None:
        for _ in range(self._random.randrange(LONGEST_TURNS)):
            await asyncio.sleep(0)
        if self.is_away:
            raise errors.Unavailable("no answer")
