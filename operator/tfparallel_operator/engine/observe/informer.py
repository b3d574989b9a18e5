"""Follows the children of all jobs: list and watch, slim records, an index by owner.

A record is written by the watch, or at once from the answer to a write of ours; resource versions
say which is newer. Objects that vanished while a watch was cut are removed after the next list,
which a framework's watch would never report.

A list is right up to its version. If that is lower than a version that was known before, etcd was
restored from an older copy: nothing known counts any longer, and the list replaces it. A watch that
goes on from a version of the lost future would be silent, so where the API server is comes first.
"""

import asyncio
import contextlib
import dataclasses
import functools
import logging
import random
import sys
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence, Set
from typing import Any, Generic, TypeVar

from tfparallel_operator.api import gate, names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import records

_LOG = logging.getLogger(__name__)

SELECTOR = f"{names.LABEL_MANAGED_BY}={names.MANAGED_BY}"
RETRY_SECONDS = (1.0, 10.0)
"""Shortest and longest pause before a list or watch that failed is tried again."""

HIDDEN_SECONDS = 10.0
"""How often an object is read that has lost the label by which it is followed."""

HIDDEN_A_SECOND = 10.0
"""How many such objects are read in a second at most: anybody may take a label from many pods."""

ABSENT_SECONDS = 30.0
"""How often it is looked whether a resource that is not there has been installed."""

T = TypeVar("T")
Slim = Callable[[Mapping[str, Any]], T | None]
"""Makes the record's value of an object; None leaves the object out."""

Changed = Callable[[records.Owner], None]
"""Told of the owner of whatever has changed."""

Rewound = Callable[[], None]
"""Told that the API server's history has gone back."""

Watch = tuple[str, Callable[[], Coroutine[Any, Any, None]]]
"""What is followed, in words, and how."""

Entry = tuple[tuple[str, str], int, records.Owner | None, T | None]
"""What is known of an object: its key, version, owner and value."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Record(Generic[T]):
    owner: records.Owner
    version: int
    value: T


class NotServed(Exception):  # noqa: N818 (an answer)
    """The API server does not have a resource that it need not have."""


class Informer(Generic[T]):
    """Records of one resource's objects that belong to jobs.

    One that is `optional` need not be installed: nothing is there until it is. With `metadata_only`
    nothing but metadata is read, so that the size of objects does not matter. With `keeps_hidden`
    an object that has lost the label of the selector still counts, and is read from time to time.
    """

    def __init__(
        self,
        api: client.Client,
        resource: resources.Resource,
        namespaces: tuple[str, ...],
        slim: Slim[T],
        changed: Changed,
        *,
        rewound: Rewound = lambda: None,
        optional: bool = False,
        metadata_only: bool = False,
        keeps_hidden: bool = False,
    ) -> None:
        self.resource = resource
        self.served = resource
        """The resource in the version that the API server serves."""
        self.optional = optional
        self.metadata_only = metadata_only
        self.keeps_hidden = keeps_hidden
        self.hidden: dict[tuple[str, str], str] = {}
        """Uids of objects that the watch no longer shows, though they may be there."""
        self._slim = slim
        self._changed = changed
        self._records: dict[tuple[str, str], _Record[T]] = {}
        # The API server stores any uid in an owner reference, also that of another namespace's job.
        self._by_owner: dict[records.Owner, dict[tuple[str, str], T]] = {}
        self._owners: dict[tuple[str, str], set[records.Owner]] = {}
        """Those of each namespace and name: a job that is gone, and the one that is there now."""
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

    def of(self, owner: records.Owner) -> tuple[T, ...]:
        """Return the values that belong to a job: of its namespace, its name and its uid."""
        return tuple(self._by_owner.get(owner, {}).values())

    def of_others(self, key: tuple[str, str], uid: str) -> tuple[T, ...]:
        """Return the values that belong to jobs of a namespace and name, but not to this uid's."""
        owners = self._owners.get(key, ())
        return tuple(value for one in owners if one.uid != uid for value in self.of(one))

    def has(self, key: tuple[str, str]) -> bool:
        """Whether something is known of an object."""
        return key in self._records

    def owners(self) -> tuple[tuple[str, str], ...]:
        """Return namespace and name of every job that something belongs to."""
        return tuple(self._owners)

    def learn(self, item: Mapping[str, Any]) -> None:
        """Take in the answer to a write, unless the watch has come past it already."""
        scope = item["metadata"]["namespace"]
        stream = self._streams.get(scope) or self._streams.get(None)
        if stream is not None and _version(item) > stream.version:
            stream.newest = max(stream.newest, _version(item))
            self.put(item)

    def put(self, item: Mapping[str, Any]) -> None:
        """Write the record of an object, unless one as new is there, such as our own write's."""
        if self._is_news(_key(item), _version(item)):
            self._put(self.read(item))

    def _is_news(self, key: tuple[str, str], version: int) -> bool:
        record = self._records.get(key)
        return record is None or record.version < version

    def _is_of_lost_history(self, key: tuple[str, str], version: int, listed: int) -> bool:
        """Whether a list is newer than a record, and has an older object in its place."""
        record = self._records.get(key)
        return record is not None and version < record.version <= listed

    def _put(self, entry: Entry[T]) -> None:
        key, version, owner, value = entry
        if owner is None or value is None:
            self.drop(key)
            return
        old = self._records.get(key)
        if old is not None and old.owner != owner:
            self.drop(key)
        self._records[key] = _Record(owner, version, value)
        self._by_owner.setdefault(owner, {})[key] = value
        self._owners.setdefault((owner.namespace, owner.name), set()).add(owner)
        self._changed(owner)

    def drop(self, key: tuple[str, str]) -> None:
        """Remove the record of an object that is gone."""
        record = self._records.pop(key, None)
        if record is None:
            return
        siblings = self._by_owner[record.owner]
        del siblings[key]
        if not siblings:
            del self._by_owner[record.owner]
            self._forget(record.owner)
        self._changed(record.owner)

    def _forget(self, owner: records.Owner) -> None:
        name = owner.namespace, owner.name
        self._owners[name].discard(owner)
        if not self._owners[name]:
            del self._owners[name]

    def read(self, item: Mapping[str, Any]) -> Entry[T]:
        """Return what is known of an object; what was, if its newest version cannot be read."""
        key, version = _key(item), _version(item)
        try:
            return key, version, records.owner(item), self._slim(item)
        except gate.BeyondLimitsError as error:
            _LOG.warning("%s %s/%s is not read: %s", self.resource.plural, *key, error)
        except Exception:  # One object that cannot be read must not hide all others.
            _LOG.exception("%s %s/%s cannot be read", self.resource.plural, *key)
        record = self._records.get(key)
        return (key, version, record.owner, record.value) if record else (key, version, None, None)

    def take(self, entries: Iterable[Entry[T]], version: int) -> bool:
        """Write the records of objects that a list of this version holds, unless newer are there.

        Return whether some were of a history that the API server no longer has.
        """
        was_rewound = False
        for entry in entries:
            is_lost = self._is_of_lost_history(*entry[:2], version)
            was_rewound |= is_lost
            if is_lost or self._is_news(*entry[:2]):
                self._put(entry)
        return was_rewound

    def replace(self, entries: Sequence[Entry[T]], scope: str | None) -> None:
        """Forget what is known, and write the records of objects that a list holds."""
        self.keep({key for key, *_ in entries}, sys.maxsize, scope)
        for entry in entries:
            self._put(entry)

    def keep(self, keys: Set[tuple[str, str]], version: int, scope: str | None) -> None:
        """Remove what a list of this version does not hold; what is newer than it stays."""
        for key, record in list(self._records.items()):
            inside = scope is None or key[0] == scope
            is_gone = key not in keys and key not in self.hidden
            if inside and is_gone and record.version <= version:
                self.drop(key)


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
        self._reads: dict[tuple[str, str], asyncio.Task[None]] = {}
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
            for key, read in self._reads.items():
                self._informer.hidden.pop(key, None)
                read.cancel()

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
        entries: list[Entry[Any]] = []
        version, known = 0, self.newest
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
        if is_rewound or version < known:
            self._rewind(entries, version)
        else:
            await self._take(entries, version)

    def _rewind(self, entries: Sequence[Entry[Any]], version: int) -> None:
        """Start again from a list that is older than what was known."""
        _LOG.warning(
            "%s: the API server went back from version %d to %d: etcd was restored from an older"
            " copy; what it holds now counts",
            self._resource.plural,
            self.newest,
            version,
        )
        self._informer.replace(entries, self._scope)
        self.version = self.newest = version
        if self._watching is not None:  # It waits for a version that is yet to come.
            self._watching.reschedule(asyncio.get_running_loop().time())
        self._rewound()

    async def _take(self, entries: Sequence[Entry[Any]], version: int) -> None:
        """Take in a list, with pauses; stop once the watch has come past it.

        The watch reports deletions, too, which the list would undo.
        """
        was_rewound = False
        for start in range(0, len(entries), client.PAGE):
            if version < self.version:
                break
            was_rewound |= self._informer.take(entries[start : start + client.PAGE], version)
            await asyncio.sleep(0)
        if version >= self.version:
            self._informer.keep({key for key, *_ in entries}, version, self._scope)
            self.version = version
            self.newest = max(self.newest, version)
        if was_rewound:
            self._rewound()

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
            if _version(event.object) <= self.version:
                continue  # A list has told of it, or of what came after it.
            if event.type == "DELETED":
                self._forget(event.object)
            elif event.type in ("ADDED", "MODIFIED"):
                self._informer.hidden.pop(_key(event.object), None)
                self._informer.put(event.object)
            self.version = _version(event.object)
            self.newest = max(self.newest, self.version)

    def _forget(self, item: Mapping[str, Any]) -> None:
        """Drop an object that is gone; one that nobody deleted may have lost its label alone."""
        key = _key(item)
        if not self._informer.keeps_hidden or records.deleting(item):
            self._informer.drop(key)
        elif self._informer.has(key):
            self._informer.hidden[key] = uid = item["metadata"]["uid"]
            if key in self._reads:  # The label comes and goes.
                self._reads[key].cancel()
            self._reads[key] = read = asyncio.create_task(self._read_hidden(key, uid))
            read.add_done_callback(functools.partial(self._end_read, key))

    def _end_read(self, key: tuple[str, str], read: asyncio.Task[None]) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]

    async def _read_hidden(self, key: tuple[str, str], uid: str) -> None:
        """Read an object that the watch does not show, until it is gone or shown again."""
        hidden, path = self._informer.hidden, self._informer.served.path(*key)
        while hidden.get(key) == uid:
            try:
                item = await self._api.get(path)
            except errors.NotFound:
                break
            except errors.ApiError as error:
                _LOG.info("%s is not read: %s", path, error)
            else:
                if item["metadata"]["uid"] != uid:
                    break
                self._informer.put(item)
            await asyncio.sleep(find_pause(len(hidden)))
        if hidden.get(key) == uid:
            del hidden[key]
            self._informer.drop(key)

    async def _pause(self, error: errors.ApiError) -> None:
        shortest, longest = RETRY_SECONDS
        pause = min(longest, shortest * 2**self._failures) * random.uniform(0.5, 1)  # noqa: S311
        self._failures = min(self._failures + 1, 10)
        _LOG.warning("watch of %s: %s; again in %.0f s", self._resource.plural, error, pause)
        await asyncio.sleep(max(pause, error.retry_after or 0))


def find_pause(hidden: int) -> float:
    """Return the seconds between two reads of one of so many objects without their label."""
    return max(HIDDEN_SECONDS, hidden / HIDDEN_A_SECOND)


def _key(item: Mapping[str, Any]) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _version(item: Mapping[str, Any]) -> int:
    return int(item["metadata"]["resourceVersion"])
