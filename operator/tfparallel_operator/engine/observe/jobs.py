"""The newest known version of every job, from the watch, a list or our own writes.

Each has passed the gate. A large spec or status is stored compressed, and decompressed for a
reconcile.
"""

import logging
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from typing import Any

import orjson

from tfparallel_operator.api import gate, names
from tfparallel_operator.engine.workqueue import queue

_LOG = logging.getLogger(__name__)

Body = Mapping[str, Any]

LARGE_SPEC_BYTES = 4_096
"""A spec whose JSON is longer is compressed: as Python objects it may take 30 times as much."""

LARGE_STATUS_BYTES = 16_384
"""The same for a status, which is read more often."""

_PACKED = {"spec": "packedSpec", "status": "packedStatus"}
"""The fields of a job that hold its large parts, compressed."""

_KEPT_STATUS = ("state", "attempt", "hostPorts")
"""The fields of a compressed status that stay readable."""

_KEPT_METADATA = frozenset(
    {
        *("name", "namespace", "uid", "resourceVersion", "generation"),
        *("creationTimestamp", "deletionTimestamp"),
    }
)
"""The metadata that the operator reads. Other fields may be as large as the spec."""

_KEPT_LABELS = (names.LABEL_QUEUE, names.LABEL_WORKLOAD_PRIORITY)

Changed = Callable[[Body | None, Body], None]
"""Callback with the previous and the new version of a job."""


class Jobs:
    """Jobs by namespace and name. A version is replaced only by a newer one."""

    def __init__(self, work: queue.Queue[queue.Key], changed: Changed | None = None) -> None:
        self._work = work
        self._changed = changed
        self._heard_at = time.monotonic()
        self._bodies: dict[queue.Key, Body] = {}
        self._of_lost_history: set[queue.Key] = set()
        """Jobs of a history that a restore of etcd has undone: any version replaces them."""
        self._deleted: dict[queue.Key, int] = {}
        """Versions of deletions that a list that started earlier might undo."""
        self.newest = 0
        """The highest resource version that the API server has sent."""

    def get(self, key: queue.Key) -> Body | None:
        """Return the newest version of a job; None: it does not exist."""
        body = self._bodies.get(key)
        return None if body is None else _unpacked(body)

    def keys(self) -> tuple[queue.Key, ...]:
        """Return the keys of all jobs."""
        return tuple(self._bodies)

    def bodies(self) -> Iterator[Body]:
        """Return every job, with large specs and statuses compressed."""
        return iter(self._bodies.values())

    def states(self) -> Iterator[str]:
        """Return the state of every job."""
        for body in self._bodies.values():
            yield str((body.get("status") or {}).get("state") or names.State.PENDING.value)

    def count_beyond_limits(self) -> int:
        """Return how many jobs have a spec or a status that has not passed the gate."""
        problems = {gate.PROBLEM, gate.STATUS_PROBLEM}
        return sum(not problems.isdisjoint(body) for body in self._bodies.values())

    def silence(self) -> float:
        """Return the seconds since the last event of the watch, or the last list."""
        return time.monotonic() - self._heard_at

    def apply_event(self, kind: str | None, body: Body) -> None:
        """Store an event of the watch, and queue the job."""
        key = key_of(body)
        self._heard_at = time.monotonic()
        if kind == "DELETED":
            if key in self._bodies and self._known_version(key) <= _version(body):
                self._drop(key)
            self._deleted[key] = _version(body)
            self.newest = max(self.newest, _version(body))
        else:
            self._put(key, body)
        self._work.add(key)

    def update(self, body: Body) -> None:
        """Store the answer to a write or a read, unless the job has been deleted meanwhile."""
        key = key_of(body)
        stored = self._bodies.get(key)
        if stored is not None and stored["metadata"]["uid"] == body["metadata"]["uid"]:
            self._put(key, body)

    def forget(self, key: queue.Key, uid: str) -> None:
        """Remove a job that the API server no longer has."""
        stored = self._bodies.get(key)
        if stored is not None and stored["metadata"]["uid"] == uid:
            self._drop(key)

    def add_page(self, items: Iterable[Body], version: int) -> None:
        """Store a page of a list. (List items carry no apiVersion and kind.)"""
        for item in items:
            key = key_of(item)
            if self._deleted.get(key, 0) > version:
                continue
            if key in self._bodies and _version(item) < self._known_version(key) <= version:
                self._of_lost_history.add(key)  # A list is complete up to its version.
            self.apply_event(
                "MODIFIED", {"apiVersion": names.API_VERSION, "kind": names.KIND, **item}
            )
        self.newest = max(self.newest, version)

    def rewind(self, version: int) -> None:
        """Let any version replace the stored ones, because etcd was restored from an older copy."""
        _LOG.warning(
            "%s: the API server went back from version %d to %d: etcd was restored from an older"
            " copy; what it holds now counts",
            names.PLURAL,
            self.newest,
            version,
        )
        self._of_lost_history = set(self._bodies)
        self._deleted.clear()
        self.newest = version

    def keep(self, keys: Set[queue.Key], version: int, namespace: str | None) -> None:
        """Remove the jobs that a list of this version lacks, except newer ones."""
        self._heard_at = time.monotonic()
        self._deleted.clear()
        for key in list(self._bodies):
            inside = namespace is None or key.namespace == namespace
            if inside and key not in keys and self._known_version(key) <= version:
                self._drop(key)

    def _put(self, key: queue.Key, body: Body) -> None:
        self.newest = max(self.newest, _version(body))
        if self._known_version(key) < _version(body):
            is_lost = key in self._of_lost_history
            stored = None if is_lost else self._bodies.get(key)
            self._of_lost_history.discard(key)
            self._bodies[key] = _packed(body, stored)
            try:
                if self._changed is not None:
                    before = None if stored is None else _unpacked(stored, ("status",))
                    self._changed(before, _unpacked(self._bodies[key], ("status",)))
            except Exception:  # A failure of the callback must not stop the watch.
                _LOG.exception("a change of job %s/%s is not counted", key.namespace, key.name)

    def _known_version(self, key: queue.Key) -> int:
        """Return the stored version of a job, which only newer ones replace; 0: any does."""
        stored = None if key in self._of_lost_history else self._bodies.get(key)
        return 0 if stored is None else _version(stored)

    def _drop(self, key: queue.Key) -> None:
        del self._bodies[key]
        self._of_lost_history.discard(key)


def key_of(body: Body) -> queue.Key:
    """Return a job's key."""
    return queue.Key(body["metadata"]["namespace"], body["metadata"]["name"])


def _version(body: Body) -> int:
    return int(body["metadata"]["resourceVersion"])


def _packed(body: Body, stored: Body | None) -> Body:
    """Return the stored form of a job."""
    metadata = {k: v for k, v in body["metadata"].items() if k in _KEPT_METADATA}
    labels = body["metadata"].get("labels") or {}
    if labels := {name: labels[name] for name in _KEPT_LABELS if name in labels}:
        metadata["labels"] = labels
    kept = {**body, "metadata": metadata}
    if gate.STATUS_PROBLEM in body and stored is not None:  # Its ports of nodes stay its own.
        kept["status"] = _unpacked(stored, ("status",)).get("status")
    for part, longest in (("spec", LARGE_SPEC_BYTES), ("status", LARGE_STATUS_BYTES)):
        text = orjson.dumps(kept[part]) if kept.get(part) else b""
        if len(text) > longest:
            kept[_PACKED[part]] = zlib.compress(text, 1)
            value = kept.pop(part)
            if part == "status":
                kept[part] = {name: value[name] for name in _KEPT_STATUS if name in value}
    return kept


def _unpacked(body: Body, parts: Iterable[str] = tuple(_PACKED)) -> Body:
    """Return a job with these parts decompressed."""
    packed = {part: _PACKED[part] for part in parts if _PACKED[part] in body}
    if not packed:
        return body
    fields = {name: value for name, value in body.items() if name not in packed.values()}
    return fields | {part: orjson.loads(zlib.decompress(body[packed[part]])) for part in packed}
