"""Parts of the table of numerical truth, and the page that holds the whole."""

import re

import pytest

from tests.trainer import ranks, truth
from tfparallel_trainer.mesh import tasks

SOME = tuple(case for case in truth.CASES if case.model in ("MLP", "two inputs, two outputs"))


@pytest.mark.trainer
@pytest.mark.parametrize("case", truth.CASES, ids=lambda case: case.name)
def test_two_devices_equal_a_plain_loop(case: truth.Case) -> None:
    with truth.precision("float64"):
        wanted = truth.expected(case)
        found, _ = truth.trained(case, tasks.parse(None), ranks.DEVICES[:2], ranks.slot())
    assert truth.difference(found, wanted, relative=False) <= case.limit


@pytest.mark.trainer
def test_two_processes_equal_a_plain_loop() -> None:
    cells = truth.measure((truth.Layout(2, 1),), ("float64",), SOME)
    assert len(cells) == len(SOME)
    assert truth.faults(cells) == []


def test_the_page_has_every_cell_within_its_limits() -> None:
    text = truth.PAGE.read_text()
    cells: truth.Cells = {}
    for case in truth.CASES:
        row = next(
            line
            for line in text.splitlines()
            if line.startswith(f"| {case.model} | {case.optimizer} | {case.also} |")
        )
        found = re.findall(r"(\S+) / (\S+)", row.split("|", 4)[4])
        for layout, pair in zip(truth.LAYOUTS, found, strict=True):
            for floatx, value in zip(truth.LIMITS, pair, strict=True):
                cells[case.name, str(layout), floatx] = float(value)
    assert truth.faults(cells) == []
    assert truth.page(cells) == text
