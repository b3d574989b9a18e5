"""Parts of the table of numerical truth, and the page that holds the whole."""

import re

import pytest

from testing import repeats
from testing.trainer import ranks, truth, truth_servers, truth_split
from tfparallel_trainer.mesh import tasks

SOME = tuple(case for case in truth.CASES if case.model in ("MLP", "two inputs, two outputs"))


ORDINARY = [case for case in truth.CASES if case.name.endswith("Adam") or case.model == "MLP"]


@pytest.mark.parametrize("case", repeats.some(truth.CASES, ORDINARY), ids=lambda case: case.name)
def test_two_devices_equal_a_plain_loop(case: truth.Case) -> None:
    with truth.precision("float64"):
        wanted = truth.expected(case)
        found, _ = truth.trained(case, tasks.parse(None), ranks.DEVICES[:2], ranks.generation())
    assert truth.difference(found, wanted, relative=False) <= case.limit


def test_two_processes_equal_a_plain_loop() -> None:
    cells = truth.measure((truth.Layout(2, 1),), ("float64",), SOME)
    assert len(cells) == len(SOME)
    assert truth.faults(cells) == []


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("MLP, Adam", {"data": 2, "stage": 2, "tensor": 2}),
        ("CNN, SGD momentum", {"data": 2, "spatial": 2, "tensor": 2}),
    ],
)
def test_a_split_model_equals_a_plain_loop(name: str, degrees: dict[str, int]) -> None:
    case = next(case for case in truth.CASES if case.name == name)
    layout = next(one for one in truth_split.LAYOUTS if one.degrees == degrees)
    assert truth_split.applies(case, layout)
    with truth.precision("float64"):
        wanted, losses = truth_split.expected(case, layout, 10)
        found, own_losses = truth_split.trained(case, layout, ranks.generation(), 10)
    assert truth.difference(found, wanted, relative=False) <= case.limit
    assert own_losses == pytest.approx(losses, rel=1e-10)


@pytest.mark.timeout(900)
def test_one_worker_equals_a_plain_loop_and_two_end_with_the_same_losses() -> None:
    some = [case for case in truth_servers.CASES if case.name in ("MLP, Adam", "LSTM, Adam")]
    outcomes = truth_servers.measure(some, ("float64",), truth_servers.SEEDS)
    assert len(outcomes) == len(some)
    assert truth_servers.faults(outcomes) == []


def test_the_page_has_every_cell_within_its_limits() -> None:
    text = truth.part(truth.HEADING)
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
    assert truth.section(cells) == text


def test_the_page_has_every_row_of_asynchronous_training() -> None:
    text = truth.part(truth_servers.HEADING)
    outcomes = truth_servers.parsed(text)
    assert truth_servers.faults(outcomes) == []
    assert truth_servers.section(outcomes) == text
    assert max(outcome.staleness for outcome in outcomes.values()) > 0


def test_the_page_has_every_row_of_split_models() -> None:
    text = truth.part(truth_split.HEADING)
    cells = truth_split.parsed(text)
    assert truth.faults(cells) == []
    assert truth_split.section(cells) == text
    decided = {(case, layout) for case, layout, floatx in cells if floatx == "float64"}
    assert decided == {
        (case.name, str(layout))
        for case in truth_split.CASES
        for layout in truth_split.LAYOUTS
        if truth_split.applies(case, layout)
    }


def test_the_losses_of_deep_split_models_are_those_of_one_process() -> None:
    lines = re.findall(r"^\| (\d.*) \|$", truth.part(truth_split.LOSSES_HEADING), re.MULTILINE)
    rows = [line.split(" | ") for line in lines]
    assert [int(step) for step, *_ in rows] == list(truth_split.CURVE_STEPS)
    for _, *losses in rows:
        assert losses[::2] == losses[1::2]
        assert len(losses) == 2 * len(truth_split.CURVES)


def test_the_cases_hold_what_is_asked_for() -> None:
    held = " ".join(case.also for case in truth.CASES)
    for what in ("clip", "accumulation", "masks", "sample weights", "weight decay", "no dropout"):
        assert what in held
    assert {case.model for case in truth.CASES} == {
        "MLP",
        "CNN",
        "synchronized BatchNormalization",
        "LSTM",
        "Transformer",
        "two inputs, two outputs",
        "embedding",
    }
    assert {layout.processes for layout in truth.LAYOUTS} == {1, 2, 3}
