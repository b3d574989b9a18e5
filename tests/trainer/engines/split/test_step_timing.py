"""What is kept of the steps that ranks make: how long stages compute, and when."""

import pytest

from tfparallel_trainer.engines.split import step_timing


def seconds_of_step(begin: float, scale: float = 1.0) -> list[float]:
    """A step of two stages and two microbatches, of which the second was not there."""
    busy = [0.5 * scale, 0.25 * scale]
    moments = [
        *(begin, begin + 1 * scale, begin + 4 * scale, begin + 6 * scale),
        *(0.0, 0.0, 0.0, 0.0),
        *(begin + 1 * scale, begin + 2 * scale, begin + 2 * scale, begin + 4 * scale),
        *(0.0, 0.0, 0.0, 0.0),
    ]
    return busy + moments


def test_before_the_first_step_nothing_is_known() -> None:
    timing = step_timing.StepTiming(2)
    assert (timing.busy, timing.step_seconds, timing.spans) == (None, None, ())


def test_a_step_is_reported_from_its_start_in_the_order_of_time() -> None:
    timing = step_timing.StepTiming(2)
    timing.add(seconds_of_step(1e9))
    assert timing.step_seconds is None
    assert [
        (span.stage, span.work, span.microbatch, span.begin, span.end) for span in timing.spans
    ] == [
        (0, "forward", 0, 0, 1),
        (1, "forward", 0, 1, 2),
        (1, "backward", 0, 2, 4),
        (0, "backward", 0, 4, 6),
    ]


def test_of_several_steps_the_one_of_median_length_is_shown() -> None:
    timing = step_timing.StepTiming(2)
    for begin, scale in ((100.0, 1.0), (110.0, 4.0), (140.0, 2.0), (155.0, 1.0), (200.0, 4.0)):
        timing.add(seconds_of_step(begin, scale))
    assert timing.busy == pytest.approx([0.5 * 11 / 4, 0.25 * 11 / 4])
    assert timing.step_seconds == 22.5
    assert max(span.end for span in timing.spans) == 12


def test_the_first_step_says_nothing_of_the_others() -> None:
    """It is mostly tracing, which one stage may do for all."""
    timing = step_timing.StepTiming(2)
    timing.add([30.0, *seconds_of_step(100.0)[1:]])
    assert timing.busy is None
    timing.add(seconds_of_step(200.0))
    assert timing.busy == [0.5, 0.25]


def test_only_the_last_steps_are_kept() -> None:
    timing = step_timing.StepTiming(2)
    for step in range(50):
        timing.add(seconds_of_step(100.0 * (step + 1), 1.0 if step >= 30 else 8.0))
    assert timing.busy == [0.5, 0.25]
