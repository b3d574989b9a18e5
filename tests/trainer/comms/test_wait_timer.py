"""How long ranks wait for each other in the sum of a step, and how processes compare that."""

import time
from typing import Any

import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer.comms import collectives, shape, wait_timer

SECONDS = 1.0


@pytest.mark.parametrize("gathered_bytes", [0, collectives.GATHERED_BYTES])
def test_the_rank_that_comes_first_waits(
    monkeypatch: pytest.MonkeyPatch, gathered_bytes: int
) -> None:
    monkeypatch.setattr(collectives, "GATHERED_BYTES", gathered_bytes)
    mesh = shape.MeshShape(data=2, generation=ranks.generation())
    ends = [
        collectives.Communicator.for_rank(mesh.group(rank, shape.Axis.DATA), rank, device)
        for rank, device in enumerate(ranks.DEVICES[:2])
    ]
    for end, device in zip(ends, ranks.DEVICES, strict=False):
        end.timer = wait_timer.WaitTimer(device)

    @tf.function(autograph=False)
    def add_up(program: collectives.Program) -> Any:
        sums = []
        for rank, end in enumerate(ends):
            with tf.device(ranks.DEVICES[rank]):
                end.begin(program)
                number = tf.ones((3,))
                if rank == 1:
                    number = tf.numpy_function(late, [number], tf.float32)
                sums.append(end.sum_all([tf.ensure_shape(number, [3]), tf.ones((2,), tf.float64)]))
        return sums

    def late(number: Any) -> Any:
        time.sleep(SECONDS)
        return number

    for steps in (1, 2):
        for total, more in add_up(collectives.Program.TRAIN):
            assert total.numpy().tolist() == [2.0] * 3
            assert more.numpy().tolist() == [2.0] * 2
        first, last = (end.timer.seconds for end in ends if end.timer is not None)
        assert last < first
        assert first > 0.9 * steps * SECONDS
    add_up(collectives.Program.REPORT)
    assert [end.timer.seconds for end in ends if end.timer is not None] == [first, last]
