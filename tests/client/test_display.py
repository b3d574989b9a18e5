"""What a screen of 80 columns has room for."""

import pytest

from tfparallel.terminal import display
from tfparallel_operator.api import job_status


@pytest.mark.parametrize(
    ("number", "shown"),
    [("0.123456", "0.1235"), ("12345.678", "12346"), ("1e-07", "1e-07"), ("NaN", "nan"), ("", "")],
)
def test_numbers_have_four_digits(number: str, shown: str) -> None:
    assert display.short(number) == shown


def test_a_bar_shows_loss_speed_and_time_to_go() -> None:
    progress = job_status.ProgressStatus(
        step=400,
        total_steps=1000,
        examples_per_second="12345.6789",
        eta="1h2m",
        metrics={"accuracy": "0.98123", "loss": "0.123456"},
    )
    assert display.brief_details(progress) == "loss 0.1235  12346 ex/s  ETA 1h2m"
