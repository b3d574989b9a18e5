"""The benchmarks run and give what their page shows; how fast anything is, is not tested here."""

import re

import pytest

from benchmarks import __main__ as benchmarks
from benchmarks import builds, results
from testing import paths

SMOKE = "checkpoints"
"""One process that trains; the others take minutes together."""

WHATEVER_THE_SIZE = ("split_memory", "split_limit")
"""They count bytes and exit codes, so that small runs meet the targets too."""

LIMITS = {" MB": 1000.0, " %": 1000.0, " x": 100.0, " s": 100.0, " ms": 1000.0, "": 100.0}
"""By units: what a value cannot be over, however busy the machine is."""


@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == SMOKE else pytest.mark.long)
        for name in benchmarks.TRAINING
    ],
)
def test_each_measures_what_its_rows_of_the_page_say(name: str) -> None:
    measured_results = benchmarks.TRAINING[name](results.SMALL)
    page_rows = {_without_numbers(row) for row in benchmarks.PAGE.read_text().splitlines()}
    assert measured_results
    for result in measured_results:
        row = result.row()
        assert _without_numbers(row) in page_rows
        assert 0 < result.value < LIMITS[result.unit], row
        assert "nan" not in row
        if name in WHATEVER_THE_SIZE:
            assert result.met, row


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(900)
def test_restarts_are_measured_beside_another_build() -> None:
    gang, server = builds.measure_restarts(paths.ROOT, results.SMALL)
    assert "a killed trainer to the next new step, gang of 2, next to build " in gang.what
    assert "a killed parameter server to the next new step" in server.what
    assert all(0 < result.value < LIMITS[result.unit] for result in (gang, server))


def _without_numbers(row: str) -> str:
    """What a row measures, in words, and its target."""
    what, target, *_ = [*row.removeprefix("| ").split(" | "), ""]
    return f"{re.sub(r'[0-9][0-9.]*', '…', what)} | {target}"


def test_a_target_is_met_on_its_good_side() -> None:
    low = results.Result("a", 2.0, results.Bound.AT_MOST, 1.5, " %", "")
    high = results.Result("a", 2.0, results.Bound.AT_LEAST, 1.5, " x", "")
    assert (low.met, high.met) == (True, False)
    assert low.row() == "| a | ≤ 2 % | 1.5 % | yes |  |"


def test_medians_are_compared() -> None:
    ratio = results.ratio("a", 1.1, [0.2, 0.1, 9.0], [0.1, 0.1, 0.4], "b")
    assert ratio.value == pytest.approx(2.0)
    assert ratio.detail == "200.0 ms (100.0…9000.0) against 100.0 ms (100.0…400.0) of b"
