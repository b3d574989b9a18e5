"""Random histories of runs: the report's accounting against a simpler one."""

import hypothesis
import pytest

from testing import report_histories
from tfparallel.report import attribution, history


@hypothesis.given(report_histories.histories())
def test_each_second_of_a_history_has_its_activity(lived: report_histories.History) -> None:
    divided = attribution.attribute(lived.run)
    assert divided.seconds == pytest.approx(lived.seconds)


@hypothesis.given(report_histories.histories())
def test_each_start_of_a_history_has_its_row(lived: report_histories.History) -> None:
    rows = [
        report_histories.Row(row.began, row.ended, row.steps, row.reason)
        for row in history.attempts(lived.run)
    ]
    assert rows == lived.rows
