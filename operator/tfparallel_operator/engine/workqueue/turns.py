"""Whose turn it is: one namespace after the other, and in each the one that has waited longest."""

import collections
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

T = TypeVar("T", bound=Hashable)


class Turns(Generic[T]):
    """Those who wait for a turn. However many of a namespace wait, others come between them."""

    def __init__(self) -> None:
        self._items: collections.OrderedDict[str, collections.OrderedDict[T, None]]
        self._items = collections.OrderedDict()

    def add(self, namespace: str, item: T) -> None:
        """Have an item of a namespace wait, unless it does already."""
        self._items.setdefault(namespace, collections.OrderedDict()).setdefault(item)

    def discard(self, namespace: str, item: T) -> None:
        """Have an item of a namespace no longer wait."""
        items = self._items.get(namespace, collections.OrderedDict())
        items.pop(item, None)
        if not items:
            self._items.pop(namespace, None)

    @property
    def first(self) -> T | None:
        """Whose turn it is; None: nobody waits."""
        items = next(iter(self._items.values()), None)
        return None if items is None else next(iter(items))

    def take(self) -> None:
        """End the turn of the first: its namespace is now the last."""
        namespace, items = next(iter(self._items.items()))
        self.discard(namespace, next(iter(items)))
        if items:
            self._items.move_to_end(namespace)

    def take_where(self, may: Callable[[str], bool]) -> T | None:
        """Take the first item of a namespace that may have a turn now; None: nobody waits there."""
        namespace = next(filter(may, self._items), None)
        if namespace is None:
            return None
        self._items.move_to_end(namespace, last=False)
        item = next(iter(self._items[namespace]))
        self.take()
        return item

    def put_off(self) -> None:
        """Have the first wait again, as the last of its namespace."""
        namespace, items = next(iter(self._items.items()))
        items.move_to_end(next(iter(items)))
        self._items.move_to_end(namespace)
