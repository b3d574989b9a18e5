"""Records of the objects of one resource, indexed by the job that owns them."""

import dataclasses
import logging
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import Any, Generic, TypeVar

from tfparallel_operator.api import gate
from tfparallel_operator.api_server import resources
from tfparallel_operator.engine.observe import records

_LOG = logging.getLogger(__name__)

T = TypeVar("T")

Key = tuple[str, str]
"""The namespace and the name of an object."""

Slim = Callable[[Mapping[str, Any]], T | None]
"""Converts an object to the value of its record; None: the object is left out."""

Changed = Callable[[records.Owner], None]
"""Callback with the owner of an object that has changed."""

Entry = tuple[Key, int, records.Owner | None, T | None]
"""An object's key, version, owner and value."""


@dataclasses.dataclass(frozen=True, slots=True)
class _Record(Generic[T]):
    owner: records.Owner
    version: int
    value: T


class Index(Generic[T]):
    """The objects of one resource."""

    def __init__(self, resource: resources.Resource, slim: Slim[T], changed: Changed) -> None:
        self.resource = resource
        self._slim = slim
        self._changed = changed
        self._records: dict[Key, _Record[T]] = {}
        # An owner reference may contain any uid, even of a job in another namespace.
        self._by_owner: dict[records.Owner, dict[Key, T]] = {}
        self._owners: dict[Key, set[records.Owner]] = {}
        """Owners by namespace and name: deleted jobs, and the current one."""

    def for_owner(self, owner: records.Owner) -> tuple[T, ...]:
        """Return the values of a job, identified by namespace, name and uid."""
        return tuple(self._by_owner.get(owner, {}).values())

    def of_others(self, key: Key, uid: str) -> tuple[T, ...]:
        """Return the values of all jobs of a namespace and name except the one with this uid."""
        owners = self._owners.get(key, ())
        return tuple(
            value for owner in owners if owner.uid != uid for value in self.for_owner(owner)
        )

    def has(self, key: Key) -> bool:
        """Whether an object has a record."""
        return key in self._records

    def owners(self) -> tuple[Key, ...]:
        """Return namespace and name of every job that owns an object."""
        return tuple(self._owners)

    def put(self, item: Mapping[str, Any]) -> None:
        """Store an object, unless the record is as new, for example from our own write."""
        if self._is_news(find_key(item), find_version(item)):
            self._put(self.read(item))

    def _is_news(self, key: Key, version: int) -> bool:
        record = self._records.get(key)
        return record is None or record.version < version

    def _is_of_lost_history(self, key: Key, version: int, listed: int) -> bool:
        """Whether a newer list has an older version of the object than its record."""
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

    def drop(self, key: Key) -> None:
        """Remove the record of a deleted object."""
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
        """Convert an object to an entry. If that fails, keep the value of the last version."""
        key, version = find_key(item), find_version(item)
        try:
            return key, version, records.owner(item), self._slim(item)
        except gate.BeyondLimitsError as error:
            _LOG.warning("%s %s/%s is not read: %s", self.resource.plural, *key, error)
        except Exception:  # An unreadable object must not hide the others.
            _LOG.exception("%s %s/%s cannot be read", self.resource.plural, *key)
        record = self._records.get(key)
        return (key, version, record.owner, record.value) if record else (key, version, None, None)

    def take(self, entries: Iterable[Entry[T]], version: int) -> bool:
        """Store the objects of a list of this version, except where the record is newer.

        Return whether some records were of a history that the API server no longer has.
        """
        was_rewound = False
        for entry in entries:
            is_lost = self._is_of_lost_history(*entry[:2], version)
            was_rewound |= is_lost
            if is_lost or self._is_news(*entry[:2]):
                self._put(entry)
        return was_rewound

    def replace(self, entries: Sequence[Entry[T]], keys: Set[Key], scope: str | None) -> None:
        """Remove all records except of these keys, and store the objects of a list."""
        self.keep(keys, sys.maxsize, scope)
        for entry in entries:
            self._put(entry)

    def keep(self, keys: Set[Key], version: int, scope: str | None) -> None:
        """Remove the records that a list of this version lacks, except newer ones."""
        for key, record in list(self._records.items()):
            inside = scope is None or key[0] == scope
            if inside and key not in keys and record.version <= version:
                self.drop(key)


def find_key(item: Mapping[str, Any]) -> Key:
    """Return the namespace and the name of an object."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def find_version(item: Mapping[str, Any]) -> int:
    """Return the resource version of an object."""
    return int(item["metadata"]["resourceVersion"])
