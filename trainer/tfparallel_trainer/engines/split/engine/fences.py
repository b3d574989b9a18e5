"""Keeps the operations of a rank in one order within a traced function.

What a rank does waits for all that it did before. Otherwise `tf.function` runs whatever is ready,
and neither order nor memory would be the schedule's. Only a message between processes may be on its
way meanwhile: it leaves while its giver works on, and arrives while its taker still does the work
before. It is one message for each rank, so memory stays bounded.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf


class Fences:
    """What one rank does in a program, in order: each operation waits for earlier ones."""

    def __init__(self, device: str) -> None:
        self._device = device
        self._last: list[Any] = []
        self._before: list[Any] = []
        """What the latest work waited for."""
        self._arrived: list[Any] = []
        self._gone: list[Any] = []
        # NCCL wants messages in one order at both ends, which only strict order grants.
        self._overlaps = ":GPU:" not in device

    @contextlib.contextmanager
    def fence(self) -> Iterator[None]:
        """A context in which operations wait for all that this rank did before."""
        with tf.device(self._device), tf.control_dependencies(self._last):
            yield

    def did(self, tensors: Sequence[Any]) -> None:
        """What the rank does next waits for these, which were made behind its fence."""
        done = [one for one in tensors if one is not None]
        if done:
            self._last = [*done, *self._arrived]
            self._arrived = []

    def begin(self) -> None:
        """The rank's next work begins, for which it waits for what is to arrive."""
        self._last = self._before = [*self._last, *self._arrived]
        self._arrived = []

    @contextlib.contextmanager
    def taking(self) -> Iterator[None]:
        """A context for a message that may arrive while the rank does its latest work."""
        before = self._before if self._overlaps else self._last
        with tf.device(self._device), tf.control_dependencies(before):
            yield

    def took(self, tensor: Any) -> None:
        """The rank's next work has use for this, which was made in the context `taking`."""
        self._arrived.append(tensor)
        if not self._overlaps:
            self.settle()

    @contextlib.contextmanager
    def giving(self) -> Iterator[None]:
        """A context for a message that may leave while the rank goes on, one after the other."""
        before = self._gone if self._overlaps else self._last
        with tf.device(self._device), tf.control_dependencies(before):
            yield

    def gave(self, tensor: Any) -> None:
        """The rank's next message waits for this, which was made in the context `giving`."""
        self._gone = [tensor]
        if not self._overlaps:
            self.settle()

    def settle(self) -> None:
        """What the rank does next waits for all messages, too."""
        self._last = [*self._last, *self._arrived, *self._gone]
        self._arrived, self._gone = [], []
