"""The memory of a step in stages is what its schedule says, not only the order of its trace."""

import functools

import pytest
import tensorflow as tf

from benchmarks.scripts import activations, requested
from testing.trainer import ranks
from tfparallel_trainer.engines.split.pipeline import schedule

STAGES = 3
ROWS = 4096


def test_what_operations_ask_for_is_counted() -> None:
    rows = tf.ones((1000, 1000))

    def chain() -> None:
        hidden = tf.tanh(rows)
        two = tf.tanh(hidden)
        del hidden
        for _ in range(3):
            two = tf.tanh(two)

    assert requested.most(chain) == 2 * 4 * 1000 * 1000


def test_one_forward_one_backward_holds_as_many_microbatches_as_stages() -> None:
    devices = ranks.DEVICES[:STAGES]
    bounded, unbounded = activations.in_flight(devices, microbatches=8, rows=ROWS)
    assert bounded <= STAGES
    assert unbounded == pytest.approx(8, abs=0.1)


def test_recomputation_keeps_what_segments_take() -> None:
    peak = functools.partial(activations.peak, schedule.gpipe, ranks.DEVICES[:1], 4, ROWS)
    of_a_layer = 4 * ROWS * activations.WIDTH
    """Of one microbatch. Segments of about a root of the layers need a quarter of the sums."""
    saved = peak(recomputes=False) - peak(recomputes=True)
    assert saved > 0.4 * 4 * activations.LAYERS * of_a_layer


@pytest.mark.long
def test_more_microbatches_take_no_more_memory() -> None:
    devices = ranks.DEVICES[:STAGES]
    order = schedule.one_forward_one_backward
    few, many = (activations.peak(order, devices, count, ROWS) for count in (4, 12))
    of_a_stage = 4 * ROWS * activations.WIDTH * activations.LAYERS
    """Of one microbatch. All stages held all of the eight more if nothing bounded them, and what
    is on its way between layers differs by one or two from run to run.
    """
    assert many - few < 8 * STAGES * of_a_stage / 6
