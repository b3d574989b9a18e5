"""Follows the children of all jobs by list and watch, and indexes slim records of them.

Records come from the watch, and from the answers to our own writes; resource versions say which is
newer. An object that was deleted while no watch ran is removed after the next list. A framework's
watch would never report it.

A list is complete up to its version. If that is lower than a version that was known before, etcd
was restored from an older copy, and the list replaces all records. A watch from a version that the
API server has not reached would be silent, so the stream asks for the current version first.
"""

import asyncio
import contextlib
import logging
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from tfparallel_operator.api import names
from tfparallel_operator.api_server import answers, client, errors, resources
from tfparallel_operator.engine.observe import index, records
from tfparallel_operator.engine.observe.hidden import Hidden

_LOG = logging.getLogger(__name__)

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
RETRY_SECONDS = (1.0, 10.0)
"""Shortest and longest pause before a failed list or watch is retried."""

ABSENT_SECONDS = 30.0
"""How often to check whether a missing resource has been installed."""

T = TypeVar("T")

Rewound = Callable[[], None]
"""Callback after a restore of etcd from an older copy."""

Watch = tuple[str, Callable[[], Coroutine[Any, Any, None]]]
"""The name of a stream, and the coroutine that follows it."""


class NotServed(Exception):  # noqa: N818 (an answer)
    """The API server does not serve an optional resource."""


class Informer(index.Index[T]):
    """Follows the objects of one resource that belong to jobs.

    An `optional` resource need not be installed. With `metadata_only`, the informer reads metadata
    alone, so the size of objects does not matter. With `keeps_hidden`, an object that has lost the
    label of the selector stays, and is read from time to time.
    """

    def __init__(
        self,
        api: client.Client,
        resource: resources.Resource,
        namespaces: tuple[str, ...],
        slim: index.Slim[T],
        changed: index.Changed,
        *,
        rewound: Rewound = lambda: None,
        optional: bool = False,
        metadata_only: bool = False,
        keeps_hidden: bool = False,
    ) -> None:
        super().__init__(resource, slim, changed)
        self.served = resource
        """The resource in the version that the API server serves."""
        self.optional = optional
        self.metadata_only = metadata_only
        self.keeps_hidden = keeps_hidden
        self.hidden = Hidden(api, self)
        scopes: tuple[str | None, ...] = namespaces or (None,)
        self._streams = {scope: Stream(api, resource, scope, self, rewound) for scope in scopes}

    def watches(self) -> Iterator[Watch]:
        """Yield the streams, one for all namespaces or for each watched one.

        A stream that fails may be run again. It does not depend on the others.
        """
        of_group = f" of {self.resource.group}" if self.resource.group else ""
        for scope, stream in self._streams.items():
            of_scope = f" in {scope}" if scope else ""
            yield f"{self.resource.plural}{of_group}{of_scope}", stream.run

    @property
    def synced(self) -> bool:
        """Whether the first list of each stream is complete."""
        return all(stream.listed.is_set() for stream in self._streams.values())

    async def wait_synced(self) -> None:
        """Return once `synced` holds."""
        for stream in self._streams.values():
            await stream.listed.wait()

    async def refresh(self) -> None:
        """List everything again.

        Raises:
            errors.ApiError: a list cannot be read.
        """
        for stream in self._streams.values():
            with contextlib.suppress(NotServed):
                await stream.list()

    def silence(self, now: float) -> float:
        """Return the seconds since the quietest stream last received or tried anything."""
        return max(now - stream.active_at for stream in self._streams.values())

    def learn(self, item: Mapping[str, Any]) -> None:
        """Store the answer to a write, unless the watch is already newer."""
        scope = item["metadata"]["namespace"]
        stream = self._streams.get(scope) or self._streams.get(None)
        if stream is not None and index.find_version(item) > stream.version:
            stream.newest = max(stream.newest, index.find_version(item))
            self.put(item)


class Stream:
    """A list and a watch of all namespaces, or of one."""

    def __init__(
        self,
        api: client.Client,
        resource: resources.Resource,
        scope: str | None,
        informer: Informer[Any],
        rewound: Rewound,
    ) -> None:
        self._api = api
        self._resource = resource
        self._scope = scope
        self._informer = informer
        self._rewound = rewound
        self._failures = 0
        self._is_cut = False
        """Whether the API server was unavailable: it may come back with an older etcd."""
        self._listing = asyncio.Lock()
        self._watching: asyncio.Timeout | None = None
        self.listed = asyncio.Event()
        self.version = 0
        """The resource version that the stream has reached; 0: it must list."""
        self.newest = 0
        """The highest resource version that the API server has sent."""
        self.active_at = time.monotonic()

    async def run(self) -> None:
        """List and watch forever; pause after errors."""
        try:
            await self._run()
        finally:
            self._informer.hidden.remove_all(self._scope)

    async def _run(self) -> None:
        while True:
            self.active_at = time.monotonic()
            fresh = self.version == 0
            try:
                await self._follow()
                self._failures = 0
            except NotServed:
                self.active_at = time.monotonic()
                await asyncio.sleep(ABSENT_SECONDS)
            except errors.Expired as error:
                self.version = 0
                if fresh:  # Even a new list is too old: don't list in a tight loop.
                    await self._pause(error)
            except errors.ApiError as error:
                if self._informer.optional and isinstance(error, errors.NotFound):
                    self.version = 0
                self._is_cut |= not error.status
                await self._pause(error)

    async def list(self, *, is_rewound: bool = False) -> None:
        """List everything. A watch that runs meanwhile continues after the list.

        Args:
            is_rewound: whether etcd is known to have been restored from an older copy.

        Raises:
            NotServed: the resource is optional and not installed.
            errors.ApiError: the list cannot be read.
        """
        async with self._listing:
            await self._list(is_rewound=is_rewound)
        self._is_cut = False
        self.listed.set()

    async def _list(self, *, is_rewound: bool) -> None:
        entries: list[index.Entry[Any]] = []
        version, newest = 0, self.newest
        try:
            served = self._informer.served = await self._api.served(self._resource)
            pages = self._api.pages(
                served, self._scope, SELECTOR, metadata_only=self._informer.metadata_only
            )
            async for page in pages:
                entries += map(self._informer.read, page.items)
                version = int(page.version)
        except (errors.NotFound, errors.Refused) as error:
            if not self._informer.optional:
                raise
            # An older ClusterRole has no right to read them: treat them as not installed.
            self._informer.keep(set(), sys.maxsize, self._scope)
            self.listed.set()
            raise NotServed from error
        if is_rewound or version < newest:
            self._rewind(entries, version)
        else:
            await self._take(entries, version)

    def _rewind(self, entries: Sequence[index.Entry[Any]], version: int) -> None:
        """Replace all records by a list that is older than they are."""
        _LOG.warning(
            "%s: the API server went back from version %d to %d: etcd was restored from an older"
            " copy; what it holds now counts",
            self._resource.plural,
            self.newest,
            version,
        )
        self._informer.replace(entries, self._find_keys(entries), self._scope)
        self.version = self.newest = version
        if self._watching is not None:  # It waits for a version that the API server hasn't reached.
            self._watching.reschedule(asyncio.get_running_loop().time())
        self._rewound()

    async def _take(self, entries: Sequence[index.Entry[Any]], version: int) -> None:
        """Store a list page by page; stop once the watch is newer.

        An older list would bring back objects whose deletion the watch has reported.
        """
        was_rewound = False
        for start in range(0, len(entries), answers.PAGE):
            if version < self.version:
                break
            was_rewound |= self._informer.take(entries[start : start + answers.PAGE], version)
            await asyncio.sleep(0)
        if version >= self.version:
            self._informer.keep(self._find_keys(entries), version, self._scope)
            self.version = version
            self.newest = max(self.newest, version)
        if was_rewound:
            self._rewound()

    def _find_keys(self, entries: Sequence[index.Entry[Any]]) -> set[index.Key]:
        """Return the keys of a list, and of hidden objects, which no list contains."""
        return self._informer.hidden.keys().union(key for key, *_ in entries)

    async def _follow(self) -> None:
        if not self.version or self._is_cut:
            await self.list()
        elif await self._api.current_version(self._informer.served, self._scope) < self.version:
            await self.list(is_rewound=True)
        try:
            async with asyncio.timeout(None) as self._watching:
                await self._watch()
        except TimeoutError:
            return  # The list has set the version from which to continue.
        finally:
            self._watching = None

    async def _watch(self) -> None:
        """Watch from the stream's version, until the API server ends the watch."""
        served = self._informer.served
        watch = self._api.watch(
            served,
            self._scope,
            str(self.version),
            SELECTOR,
            metadata_only=self._informer.metadata_only,
        )
        async for event in watch:
            self.active_at = time.monotonic()
            self._failures = 0
            if index.find_version(event.object) <= self.version:
                continue  # A list had this version of the object, or a newer one.
            if event.type == "DELETED":
                self._forget(event.object)
            elif event.type in ("ADDED", "MODIFIED"):
                self._informer.hidden.remove(index.find_key(event.object))
                self._informer.put(event.object)
            self.version = index.find_version(event.object)
            self.newest = max(self.newest, self.version)

    def _forget(self, item: Mapping[str, Any]) -> None:
        """Remove a deleted object. One that nobody deletes may only have lost its label."""
        key = index.find_key(item)
        if not self._informer.keeps_hidden or records.deleting(item):
            self._informer.drop(key)
        elif self._informer.has(key):
            self._informer.hidden.add(key, item["metadata"]["uid"])

    async def _pause(self, error: errors.ApiError) -> None:
        shortest, longest = RETRY_SECONDS
        pause = min(longest, shortest * 2**self._failures) * random.uniform(0.5, 1)  # noqa: S311
        self._failures = min(self._failures + 1, 10)
        _LOG.warning("watch of %s: %s; again in %.0f s", self._resource.plural, error, pause)
        await asyncio.sleep(max(pause, error.retry_after or 0))
