"""The order of one rank's operations: each waits for all that the rank did before.

Otherwise `tf.function` runs whatever is ready, and neither order nor memory is the schedule's. Only
a message between processes may overlap with computation: it leaves while its sender computes on,
and arrives while its receiver still does the action before. One message is under way in each
direction, so memory stays bounded.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf


class OrderingScope:
    """Contexts for one rank's operations, which add control dependencies while a step is traced.

    The body of each context appends the tensors that later operations have to wait for. None stands
    for a gradient that does not exist.
    """

    def __init__(self, device: str) -> None:
        self._device = device
        self._latest: list[Any] = []
        self._before_action: list[Any] = []
        """What the latest action waited for."""
        self._received: list[Any] = []
        self._sent: list[Any] = []
        # NCCL needs messages in one order at both ends, which only strict order guarantees.
        self._overlaps = ":GPU:" not in device

    @contextlib.contextmanager
    def compute(self, *, begins_action: bool = False) -> Iterator[list[Any]]:
        """A context for computation, which waits for all earlier computation.

        With `begins_action` it begins an action of the schedule, and waits for received messages.
        """
        if begins_action:
            self._latest = self._before_action = [*self._latest, *self._received]
            self._received = []
        results: list[Any] = []
        with self._after(self._latest):
            yield results
        tensors = [tensor for tensor in results if tensor is not None]
        if tensors:
            self._latest = [*tensors, *self._received]
            self._received = []

    @contextlib.contextmanager
    def receive(self) -> Iterator[list[Any]]:
        """A context for a message that may arrive during the latest action."""
        results: list[Any] = []
        with self._after(self._before_action if self._overlaps else self._latest):
            yield results
        self._received += results
        if not self._overlaps:
            self.join_messages()

    @contextlib.contextmanager
    def send(self) -> Iterator[list[Any]]:
        """A context for a message that may leave during later actions, one after the other."""
        results: list[Any] = []
        with self._after(self._sent if self._overlaps else self._latest):
            yield results
        self._sent = results
        if not self._overlaps:
            self.join_messages()

    def join_messages(self) -> None:
        """Make later computation wait for all messages, too."""
        self._latest = [*self._latest, *self._received, *self._sent]
        self._received, self._sent = [], []

    def carried(self) -> dict[str, tf.Tensor]:
        """A tensor for each thing that later operations wait for, as a loop carries them."""
        waits = {
            "latest": self._latest,
            "before_action": self._before_action,
            "received": self._received,
            "sent": self._sent,
        }
        return {name: self._token(tensors) for name, tensors in waits.items()}

    def restore(self, carried: Mapping[str, tf.Tensor]) -> None:
        """Let later operations wait for tensors of `carried`."""
        self._latest, self._before_action = [carried["latest"]], [carried["before_action"]]
        self._received, self._sent = [carried["received"]], [carried["sent"]]

    def _token(self, tensors: Sequence[Any]) -> tf.Tensor:
        with self._after(tensors):
            return tf.zeros((), tf.bool)

    @contextlib.contextmanager
    def _after(self, tensors: Sequence[Any]) -> Iterator[None]:
        with tf.device(self._device), tf.control_dependencies(tensors):
            yield
