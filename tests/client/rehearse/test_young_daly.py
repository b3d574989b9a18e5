"""The estimate of goodput, compared with a simulation and with the best interval by search."""

import math
import random

import pytest

from tfparallel.rehearse import young_daly

HOUR = 3600.0
COSTS = young_daly.Costs(pause=20.0, write=0.0, restart=120.0)


def simulate(interval: float, costs: young_daly.Costs, between_failures: float) -> float:
    """Return the share of kept training among 20,000 intervals of a job that fails at random."""
    draws = random.Random(4)  # noqa: S311 (no secret)
    spent = 0.0
    for _ in range(20_000):
        needed = interval + costs.pause
        while (failure := draws.expovariate(1 / between_failures)) < needed:
            spent += failure
            needed = costs.restart + interval + costs.pause
        spent += needed
    return 20_000 * interval / spent


@pytest.mark.parametrize("between_failures", [HOUR, 10 * HOUR])
@pytest.mark.parametrize("interval", [60.0, 600.0])
def test_the_estimate_is_what_a_simulation_gives(interval: float, between_failures: float) -> None:
    expected = simulate(interval, COSTS, between_failures)
    estimate = young_daly.estimate_goodput(interval, COSTS, between_failures)
    # Daly counts a restart's own failures too, and restarts that happen at the very end.
    assert estimate == pytest.approx(expected, rel=0.05)


@pytest.mark.parametrize("between_failures", [HOUR, 10 * HOUR, 1000 * HOUR])
@pytest.mark.parametrize("pause", [0.1, 5.0, 60.0])
def test_no_interval_is_better_than_the_best(pause: float, between_failures: float) -> None:
    costs = young_daly.Costs(pause=pause, write=1.0, restart=30.0)
    best = young_daly.find_best_interval(costs, between_failures)
    goodput = young_daly.estimate_goodput(best, costs, between_failures)
    others = (
        young_daly.estimate_goodput(best * 1.02**power, costs, between_failures)
        for power in range(-200, 200)
    )
    assert max(others) <= goodput + 1e-4


def test_young_is_the_limit_of_daly_for_rare_failures() -> None:
    best = young_daly.find_best_interval(COSTS, 1e9)
    assert best == pytest.approx(math.sqrt(2 * COSTS.pause * 1e9), rel=1e-3)


def test_a_write_that_is_lost_costs_as_much_as_a_longer_restart() -> None:
    lost = young_daly.Costs(pause=20.0, write=40.0, restart=80.0)
    assert young_daly.estimate_goodput(600.0, lost, HOUR) == young_daly.estimate_goodput(
        600.0, COSTS, HOUR
    )


def test_a_checkpoint_that_costs_more_than_failures_leave_is_saved_rarely() -> None:
    costs = young_daly.Costs(pause=100.0, write=0.0, restart=1.0)
    assert young_daly.find_best_interval(costs, 40.0) == 40.0


def test_a_job_that_fails_all_the_time_makes_no_progress() -> None:
    assert young_daly.estimate_goodput(HOUR, COSTS, 10.0) == 0.0
    assert young_daly.estimate_goodput(60.0, COSTS, 1e-3) == 0.0


def test_free_checkpoints_are_saved_as_often_as_can_be() -> None:
    free = young_daly.Costs(pause=0.0, write=0.0, restart=1.0)
    assert young_daly.find_best_interval(free, HOUR) == 0.0
