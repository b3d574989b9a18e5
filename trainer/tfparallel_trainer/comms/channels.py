"""Channels for bytes from one process to another, over the connections that training uses.

A channel may work in a thread of its own while training communicates.
"""

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import tensorflow as tf

from tfparallel_trainer.comms import collectives

_KEY = 1 << 14
"""Key of the first channel's group, below those of all meshes. Each channel has two keys."""

_WORD = np.dtype(np.int32)
_SMALL_BYTES = 256 << 10
_LARGE_BYTES = 1 << 20
"""Of a long message. glibc keeps memory of messages for each thread that has freed some: of 4 MiB,
that was 130 MB in a trainer."""
_LENGTH_BYTES = 8
"""The first message begins with the number of bytes of the whole content."""


class Channel(Protocol):
    """One end of a channel, in one direction."""

    def send(self, length: int, read: Callable[[int, int], bytes]) -> None:
        """Send so many bytes; `read` returns those at an offset.

        When it returns, the other process may not have the last of them yet.
        """

    def receive(self) -> Iterator[bytes]:
        """Yield what the other process sends, block by block, to the end."""


class PairChannel:
    """A channel that is a group of two devices."""

    def __init__(
        self,
        number: int,
        device: str,
        *,
        is_sender: bool,
        open_wait: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext,
    ) -> None:
        """Open this process's end.

        Args:
            number: of the channel, which the process at the other end uses too, and no channel
                else.
            device: a CPU of this process.
            is_sender: whether this process sends.
            open_wait: what is open while this process waits for the other one.
        """
        self._device = device
        self._open_wait = open_wait
        self._is_sender = is_sender
        hint = collectives.choose_hint(device, uses_nccl=False)
        key = _KEY + 2 * number
        self._pair = collectives.Communicator(key, 2, 0 if is_sender else 1, device, hint)
        self._traced: dict[int, Any] = {}

    def send(self, length: int, read: Callable[[int, int], bytes]) -> None:
        """Send so many bytes, as `Channel` says."""
        head = length.to_bytes(_LENGTH_BYTES, "little")
        for offset, count, size in _messages(length):
            self._send((head + read(offset, count)).ljust(size, b"\0"))
            head = b""

    def receive(self) -> Iterator[bytes]:
        """Receive as many bytes as the other process sends, as `Channel` says."""
        first = self._receive(_SMALL_BYTES)
        head, content = first[:_LENGTH_BYTES], first[_LENGTH_BYTES:]
        (_, first_count, _), *others = _messages(int.from_bytes(head, "little"))
        yield content[:first_count]
        for _, count, size in others:
            yield self._receive(size)[:count]

    def _send(self, content: bytes) -> None:
        with self._open_wait(), tf.device(self._device):
            self._function(len(content))(tf.constant(np.frombuffer(content, _WORD)))

    def _receive(self, size: int) -> bytes:
        with self._open_wait(), tf.device(self._device):
            content: bytes = self._function(size)().numpy().tobytes()
        return content

    def _function(self, size: int) -> Any:
        """The function that sends or receives a message of so many bytes."""
        if size not in self._traced:
            variant, shape = int(size == _LARGE_BYTES), (size // _WORD.itemsize,)
            specs = [tf.TensorSpec(shape, _WORD)] if self._is_sender else []

            def run(*messages: tf.Tensor) -> Any:
                with tf.device(self._device):
                    self._pair.begin(collectives.Program.TRANSFER, variant)
                    received, sent = self._pair.send_receive(
                        [(0, 1)], dict(enumerate(messages)), {0: shape}, tf.as_dtype(_WORD)
                    )
                    with tf.control_dependencies(sent):
                        return received.get(0, tf.constant(0))

            self._traced[size] = tf.function(run, input_signature=specs, autograph=False)
        return self._traced[size]


def _messages(length: int) -> Iterator[tuple[int, int, int]]:
    """Divide a content into messages: the offset, the number of bytes, and the size of each.

    TensorFlow remembers the shape of a message, so two sizes exist, and messages are filled up.
    """
    offset = min(length, _SMALL_BYTES - _LENGTH_BYTES)
    yield 0, offset, _SMALL_BYTES
    while offset < length:
        size = _LARGE_BYTES if length - offset > _SMALL_BYTES else _SMALL_BYTES
        count = min(size, length - offset)
        yield offset, count, size
        offset += count
