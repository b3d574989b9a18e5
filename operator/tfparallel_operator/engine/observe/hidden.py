"""Objects that have lost the label of the selector: each is read from time to time.

Anybody who may change pods may remove the label from many, so the rate of reads is limited. The
namespaces share the limit, so that the objects of one don't delay those of another.
"""

import asyncio
import collections
import functools
import logging
from collections.abc import Mapping
from typing import Any, Protocol

from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import index

_LOG = logging.getLogger(__name__)

SECONDS = 10.0
"""Seconds between two reads of an object."""

A_SECOND = 10.0
"""Maximum number of reads per second."""


class Followed(Protocol):
    """The informer that stores the objects."""

    served: resources.Resource

    def put(self, item: Mapping[str, Any]) -> None:
        """Store an object."""

    def drop(self, key: index.Key) -> None:
        """Remove a deleted object."""


class Hidden:
    """Objects that may exist although the watch does not show them."""

    def __init__(self, api: client.Client, followed: Followed) -> None:
        self._api = api
        self._followed = followed
        self._reads: dict[index.Key, asyncio.Task[None]] = {}
        self._counts: collections.Counter[str] = collections.Counter()
        """Objects by namespace."""

    def keys(self) -> set[index.Key]:
        """Return the keys of the hidden objects."""
        return set(self._reads)

    def add(self, key: index.Key, uid: str) -> None:
        """Start to read an object."""
        self.remove(key)  # Somebody may remove the label again and again.
        self._counts[key[0]] += 1
        self._reads[key] = read = asyncio.create_task(self._read(key, uid))
        read.add_done_callback(functools.partial(self._end, key))

    def remove(self, key: index.Key) -> None:
        """Stop to read an object, because the watch shows it or has ended."""
        if (read := self._reads.get(key)) is not None:
            self._end(key, read)
            read.cancel()

    def remove_all(self, scope: str | None) -> None:
        """Stop to read the objects of a namespace; None: of all."""
        for key in self.keys():
            if scope in (None, key[0]):
                self.remove(key)

    def _end(self, key: index.Key, read: asyncio.Task[None]) -> None:
        if self._reads.get(key) is read:
            del self._reads[key]
            self._counts -= collections.Counter({key[0]: 1})

    async def _read(self, key: index.Key, uid: str) -> None:
        """Read an object until it is deleted."""
        path = self._followed.served.path(*key)
        while True:
            try:
                item = await self._api.get(path)
            except errors.NotFound:
                break
            except errors.ApiError as error:
                _LOG.info("%s is not read: %s", path, error)
            else:
                if item["metadata"]["uid"] != uid:
                    break
                self._followed.put(item)
            await asyncio.sleep(find_pause(self._counts[key[0]], len(self._counts)))
        self._followed.drop(key)


def find_pause(objects: int, namespaces: int) -> float:
    """Return the seconds between two reads of an object.

    Args:
        objects: number of hidden objects in its namespace.
        namespaces: number of namespaces with hidden objects.
    """
    return max(SECONDS, objects * namespaces / A_SECOND)
