"""What is kept of the steps that ranks make: how long stages compute, and when."""

import pytest

from tfparallel_trainer.engines.split import watched


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
    seen = watched.Watched(2)
    assert (seen.busy, seen.step_seconds, seen.spans) == (None, None, ())


def test_a_step_is_reported_from_its_start_in_the_order_of_time() -> None:
    seen = watched.Watched(2)
    seen.add(seconds_of_step(1e9))
    assert seen.step_seconds is None
    assert [(one.stage, one.work, one.microbatch, one.begin, one.end) for one in seen.spans] == [
        (0, "forward", 0, 0, 1),
        (1, "forward", 0, 1, 2),
        (1, "backward", 0, 2, 4),
        (0, "backward", 0, 4, 6),
    ]


def test_of_several_steps_the_one_of_median_length_is_shown() -> None:
    seen = watched.Watched(2)
    for begin, scale in ((100.0, 1.0), (110.0, 4.0), (140.0, 2.0), (155.0, 1.0), (200.0, 4.0)):
        seen.add(seconds_of_step(begin, scale))
    assert seen.busy == pytest.approx([0.5 * 11 / 4, 0.25 * 11 / 4])
    assert seen.step_seconds == 22.5
    assert max(one.end for one in seen.spans) == 12


def test_the_first_step_says_nothing_of_the_others() -> None:
    """It is mostly tracing, which one stage may do for all."""
    seen = watched.Watched(2)
    seen.add([30.0, *seconds_of_step(100.0)[1:]])
    assert seen.busy is None
    seen.add(seconds_of_step(200.0))
    assert seen.busy == [0.5, 0.25]


def test_only_the_last_steps_are_kept() -> None:
    seen = watched.Watched(2)
    for step in range(50):
        seen.add(seconds_of_step(100.0 * (step + 1), 1.0 if step >= 30 else 8.0))
    assert seen.busy == [0.5, 0.25]
