"""Limits on the connections of a server, in total and per address."""

from collections.abc import Iterator
from typing import Generic, Protocol, TypeVar

MAX_CONNECTIONS = 128
"""Maximum number of connections, counted from the moment they are accepted."""

MAX_OF_ADDRESS = 80
"""The same for one address, such as a pod's. Another connection closes the oldest of them."""


class Connection(Protocol):
    """The attributes of a connection that the limits need."""

    @property
    def address(self) -> str:
        """The address of the peer."""

    @property
    def is_closed(self) -> bool:
        """Whether it no longer uses resources."""


C = TypeVar("C", bound=Connection)


class Connections(Generic[C]):
    """The connections of a server by address, oldest first.

    A new connection is always accepted, because it may be a probe. If there are too many, the
    oldest connection of the address that has the most is closed. So a flood closes its own.
    """

    def __init__(self) -> None:
        self._by_address: dict[str, list[C]] = {}

    def add(self, connection: C) -> C | None:
        """Add a connection; return the one to close for it, if any."""
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
        """Remove closed connections, and addresses without others."""
        for address, listed in [*self._by_address.items()]:
            listed[:] = [connection for connection in listed if not connection.is_closed]
            if not listed:
                del self._by_address[address]

    def __iter__(self) -> Iterator[C]:
        return iter([connection for listed in self._by_address.values() for connection in listed])

    def __len__(self) -> int:
        return sum(map(len, self._by_address.values()))
