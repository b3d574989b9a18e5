"""The newest known version of every job: told by the watch, a list or our own writes."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

from tfparallel_operator.api import names
from tfparallel_operator.engine.workqueue import queue

Body = Mapping[str, Any]

Changed = Callable[[Body | None, Body], None]
"""Told of every newer version of a job, and of the one before it."""


class Jobs:
    """Jobs by namespace and name. A version is replaced only by a newer one."""

    def __init__(self, work: queue.Queue[queue.Key], changed: Changed | None = None) -> None:
        self._work = work
        self._changed = changed
        self._heard_at = time.monotonic()
        self._bodies: dict[queue.Key, Body] = {}

    def get(self, key: queue.Key) -> Body | None:
        """Return a job as it was last seen; None when there is none."""
        return self._bodies.get(key)

    def keys(self) -> tuple[queue.Key, ...]:
        """Return the keys of all jobs."""
        return tuple(self._bodies)

    def bodies(self) -> Iterator[Body]:
        """Return every job as it was last seen."""
        return iter(self._bodies.values())

    def states(self) -> Iterator[str]:
        """Return the state of every job."""
        for body in self._bodies.values():
            yield str((body.get("status") or {}).get("state") or names.State.PENDING.value)

    def silence(self) -> float:
        """Return the seconds since the last event of the watch, or list."""
        return time.monotonic() - self._heard_at

    def watched(self, kind: str | None, body: Body) -> None:
        """Take in an event of the watch."""
        key = key_of(body)
        self._heard_at = time.monotonic()
        if kind == "DELETED":
            known = self._bodies.get(key)
            if known is not None and _version(known) <= _version(body):
                del self._bodies[key]
        else:
            self._put(key, body)
        self._work.add(key)

    def answered(self, body: Body) -> None:
        """Take in the answer to a write or a read; it cannot bring back a job that is gone."""
        key = key_of(body)
        known = self._bodies.get(key)
        if known is not None and known["metadata"]["uid"] == body["metadata"]["uid"]:
            self._put(key, body)

    def forget(self, key: queue.Key, uid: str) -> None:
        """Drop a job that the API server no longer knows."""
        known = self._bodies.get(key)
        if known is not None and known["metadata"]["uid"] == uid:
            del self._bodies[key]

    def listed(self, items: Iterable[Body]) -> None:
        """Take in a page of a list, whose items do not say what they are."""
        for item in items:
            self.watched("MODIFIED", {"apiVersion": names.API_VERSION, "kind": names.KIND, **item})

    def keep(self, keys: Set[queue.Key], version: int, namespace: str | None) -> None:
        """Drop what a list of this version does not hold; what is newer than it stays."""
        self._heard_at = time.monotonic()
        for key, known in list(self._bodies.items()):
            inside = namespace is None or key.namespace == namespace
            if inside and key not in keys and _version(known) <= version:
                del self._bodies[key]

    def _put(self, key: queue.Key, body: Body) -> None:
        known = self._bodies.get(key)
        if known is None or _version(known) < _version(body):
            metadata = {k: v for k, v in body["metadata"].items() if k != "managedFields"}
            self._bodies[key] = {**body, "metadata": metadata}
            if self._changed is not None:
                self._changed(known, self._bodies[key])


def key_of(body: Body) -> queue.Key:
    """Return a job's key."""
    return queue.Key(body["metadata"]["namespace"], body["metadata"]["name"])


def _version(body: Body) -> int:
    return int(body["metadata"]["resourceVersion"])
