"""Turns of namespaces: round robin between them, first in, first out within each."""

import collections
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Items that wait for a turn. Those of other namespaces come between those of one."""

    def __init__(self) -> None:
        self._items: collections.OrderedDict[str, collections.OrderedDict[T, None]]
        self._items = collections.OrderedDict()

    def add(self, namespace: str, item: T) -> None:
        """Add an item, unless it waits already."""
        self._items.setdefault(namespace, collections.OrderedDict()).setdefault(item)

    def discard(self, namespace: str, item: T) -> None:
        """Remove an item, if it waits."""
        items = self._items.get(namespace, collections.OrderedDict())
        items.pop(item, None)
        if not items:
            self._items.pop(namespace, None)

    @property
    def first(self) -> T | None:
        """The item whose turn it is; None: no item waits."""
        items = next(iter(self._items.values()), None)
        return None if items is None else next(iter(items))

    def take(self) -> None:
        """Remove the first item, and move its namespace to the end."""
        namespace, items = next(iter(self._items.items()))
        self.discard(namespace, next(iter(items)))
        if items:
            self._items.move_to_end(namespace)

    def take_where(self, may: Callable[[str], bool]) -> T | None:
        """Take the first item of a namespace that may have a turn; None: none waits there."""
        namespace = next(filter(may, self._items), None)
        if namespace is None:
            return None
        self._items.move_to_end(namespace, last=False)
        item = next(iter(self._items[namespace]))
        self.take()
        return item

    def put_off(self) -> None:
        """Move the first item to the end of its namespace, and the namespace to the end."""
        namespace, items = next(iter(self._items.items()))
        items.move_to_end(next(iter(items)))
        self._items.move_to_end(namespace)
