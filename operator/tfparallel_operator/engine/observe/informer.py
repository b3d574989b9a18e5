"""Follows the children of all jobs: by list and watch, into an index of slim records.

A record is written by the watch, or at once from the answer to a write of ours; resource versions
say which is newer. Objects that vanished while a watch was cut are removed after the next list,
which a framework's watch would never report.

A list is right up to its version. If that is lower than a version that was known before, etcd was
restored from an older copy: nothing known counts any longer, and the list replaces it. A watch that
goes on from a version of the lost future would be silent, so where the API server is comes first.
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
"""Shortest and longest pause before a list or watch that failed is tried again."""

ABSENT_SECONDS = 30.0
"""How often it is looked whether a resource that is not there has been installed."""

T = TypeVar("T")

Rewound = Callable[[], None]
"""Told that the API server's history has gone back."""

Watch = tuple[str, Callable[[], Coroutine[Any, Any, None]]]
"""What is followed, in words, and how."""


class NotServed(Exception):  # noqa: N818 (an answer)
    """The API server does not have a resource that it need not have."""


class Informer(index.Index[T]):
    """Follows one resource's objects that belong to jobs.

    One that is `optional` need not be installed: nothing is there until it is. With `metadata_only`
    nothing but metadata is read, so that the size of objects does not matter. With `keeps_hidden`
    an object that has lost the label of the selector still counts, and is read from time to time.
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
        """Yield what follows the resource forever: of all namespaces, or of each that is watched.

        One that fails may be run again, and needs none of the others.
        """
        of_group = f" of {self.resource.group}" if self.resource.group else ""
        for scope, stream in self._streams.items():
            of_scope = f" in {scope}" if scope else ""
            yield f"{self.resource.plural}{of_group}{of_scope}", stream.run

    @property
    def synced(self) -> bool:
        """Whether everything that there was at the start has been seen."""
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
        """Return the seconds since the quietest stream last heard or tried anything."""
        return max(now - stream.active_at for stream in self._streams.values())

    def learn(self, item: Mapping[str, Any]) -> None:
        """Take in the answer to a write, unless the watch has come past it already."""
        scope = item["metadata"]["namespace"]
        stream = self._streams.get(scope) or self._streams.get(None)
        if stream is not None and index.find_version(item) > stream.version:
            stream.newest = max(stream.newest, index.find_version(item))
            self.put(item)


class Stream:
    """One list and watch, of all namespaces or of one."""

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
        """Whether the API server was not there: it may have come back with an older etcd."""
        self._listing = asyncio.Lock()
        self._watching: asyncio.Timeout | None = None
        self.listed = asyncio.Event()
        self.version = 0
        """The resource version that the stream has come to; 0: it must list."""
        self.newest = 0
        """The highest resource version that the API server has told of."""
        self.active_at = time.monotonic()

    async def run(self) -> None:
        """List and watch forever; pause when the API server does not answer."""
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
                if fresh:  # What was listed just now is too old: do not list in a tight loop.
                    await self._pause(error)
            except errors.ApiError as error:
                if self._informer.optional and isinstance(error, errors.NotFound):
                    self.version = 0
                self._is_cut |= not error.status
                await self._pause(error)

    async def list(self, *, is_rewound: bool = False) -> None:
        """Read everything, also while a watch runs, which then continues after the list.

        Args:
            is_rewound: whether it is known that the API server's history has gone back.

        Raises:
            NotServed: the resource is optional, and not there.
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
            # Without rights to see them it is as if there were none; older roles have none.
            self._informer.keep(set(), sys.maxsize, self._scope)
            self.listed.set()
            raise NotServed from error
        if is_rewound or version < newest:
            self._rewind(entries, version)
        else:
            await self._take(entries, version)

    def _rewind(self, entries: Sequence[index.Entry[Any]], version: int) -> None:
        """Start again from a list that is older than what was known."""
        _LOG.warning(
            "%s: the API server went back from version %d to %d: etcd was restored from an older"
            " copy; what it holds now counts",
            self._resource.plural,
            self.newest,
            version,
        )
        self._informer.replace(entries, self._find_keys(entries), self._scope)
        self.version = self.newest = version
        if self._watching is not None:  # It waits for a version that is yet to come.
            self._watching.reschedule(asyncio.get_running_loop().time())
        self._rewound()

    async def _take(self, entries: Sequence[index.Entry[Any]], version: int) -> None:
        """Take in a list, with pauses; stop once the watch has come past it.

        The watch reports deletions, too, which the list would undo.
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
        """Return which objects are there, after a list that does not hold hidden ones."""
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
            return  # A list says where to go on.
        finally:
            self._watching = None

    async def _watch(self) -> None:
        """Watch from the stream's version on, until the API server ends it."""
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
                continue  # A list has told of it, or of what came after it.
            if event.type == "DELETED":
                self._forget(event.object)
            elif event.type in ("ADDED", "MODIFIED"):
                self._informer.hidden.remove(index.find_key(event.object))
                self._informer.put(event.object)
            self.version = index.find_version(event.object)
            self.newest = max(self.newest, self.version)

    def _forget(self, item: Mapping[str, Any]) -> None:
        """Drop an object that is gone; one that nobody deleted may have lost its label alone."""
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
