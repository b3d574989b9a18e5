"""How many connections a server has, in all and of one address, and which one makes room."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

MAX_CONNECTIONS = 128
"""Connections of a server, counted from the moment they are accepted."""

MAX_OF_ADDRESS = 80
"""The same of one address, such as a pod's: who opens more closes the oldest of them."""


class Connection(Protocol):
    """What has to be known of a connection."""

    @property
    def address(self) -> str:
        """Where it comes from."""

    @property
    def is_closed(self) -> bool:
        """Whether it takes up nothing."""


C = TypeVar("C", bound=Connection)


class Connections(Generic[C]):
    """The connections of a server by address, the oldest of each address first.

    Who comes is always let in, for it may be a probe. If there are too many, the oldest one of the
    address that has the most has to go: a flood displaces itself.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, list[C]] = {}

    def add(self, connection: C) -> C | None:
        """Take in a connection; return the one that has to be closed for it."""
        listed = self._by_address.setdefault(connection.address, [])
        listed.append(connection)
        if len(listed) <= MAX_OF_ADDRESS and len(self) <= MAX_CONNECTIONS:
            return None
        self.forget_closed()
        if len(listed) <= MAX_OF_ADDRESS and len(self) <= MAX_CONNECTIONS:
            return None
        longest = max(self._by_address.values(), key=len)
        return (listed if len(listed) > MAX_OF_ADDRESS else longest).pop(0)

    def forget_closed(self) -> None:
        """Leave out what is closed, and addresses that have nothing else."""
        for address, listed in [*self._by_address.items()]:
            listed[:] = [connection for connection in listed if not connection.is_closed]
            if not listed:
                del self._by_address[address]

    def __iter__(self) -> Iterator[C]:
        return iter([connection for listed in self._by_address.values() for connection in listed])

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))
