"""The contract between operator and trainer."""

import math

import pytest

from tfparallel_trainer.contract import exits, progress


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (59.6, "1m"), (75, "1m15s"), (3725, "1h2m"), (90_061, "1d1h"), (-3, "0s")],
)
def test_durations_have_their_two_largest_units(seconds: float, text: str) -> None:
    assert progress.format_duration(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.123456789, "0.123457"), (1e-9, "1e-09"), (math.nan, "NaN"), (-math.inf, "-Infinity")],
)
def test_numbers_are_written_as_the_api_conventions_ask(value: float, text: str) -> None:
    assert progress.format_number(value) == text


def test_every_exit_code_has_a_meaning_and_lies_clear_of_shells_and_signals() -> None:
    for code in exits.Exit:
        assert code.meaning
        assert code == 0 or 64 <= code <= 113
    assert exits.describe(137) == "ended by signal 9"
    assert exits.describe(1) == "the command failed"
