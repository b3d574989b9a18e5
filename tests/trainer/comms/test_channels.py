"""Channels: bytes of any length arrive as they are, in the order in which they are sent."""

import itertools
import threading
from collections.abc import Callable

import numpy as np
import pytest

from tfparallel_trainer.comms import channels

_numbers = itertools.count(1000)


@pytest.fixture
def transfer() -> Callable[[bytes], bytes]:
    """Sends a content from one device to another one, through one channel."""
    number = next(_numbers)
    ends = [
        channels.PairChannel(number, f"/device:CPU:{index}", is_sender=index == 0)
        for index in range(2)
    ]

    def send_and_receive(content: bytes) -> bytes:
        sending = threading.Thread(
            target=ends[0].send,
            args=(len(content), lambda offset, count: content[offset : offset + count]),
        )
        sending.start()
        received = b"".join(ends[1].receive())
        sending.join(60)
        assert not sending.is_alive()
        return received

    return send_and_receive


def test_contents_of_all_lengths_arrive(transfer: Callable[[bytes], bytes]) -> None:
    content = np.random.default_rng(1).bytes((9 << 20) + 5)
    edges = (0, 1, 4, 256 << 10, (256 << 10) + 1, 4 << 20, (4 << 20) + 1, len(content))
    for length in edges:
        assert transfer(content[:length]) == content[:length]


def test_bits_that_are_no_numbers_arrive(transfer: Callable[[bytes], bytes]) -> None:
    content = np.full(1000, np.nan, "float32").tobytes() + b"\xff" * 999
    assert transfer(content) == content
