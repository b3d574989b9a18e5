"""Parts of the table of numerical truth."""

import pytest

from testing import repeats
from testing.trainer import cases, cases_servers, cases_split, ranks
from testing.trainer import runs as trainings
from tfparallel_trainer import tasks

ORDINARY = [
    case
    for case in cases.CASES
    if (case.name.endswith("Adam") and case.model != "Transformer") or case.model == "MLP"
]
"""Stages and divided layers train the Transformer, whose gradients are summed as others are."""


@pytest.mark.parametrize("case", repeats.some(cases.CASES, ORDINARY), ids=lambda case: case.name)
def test_two_devices_equal_a_plain_loop(case: cases.Case) -> None:
    with cases.precision("float64"):
        expected = cases.train_plainly(case)
        weights, _ = cases.train(case, tasks.parse(None), ranks.DEVICES[:2], ranks.generation())
    assert cases.difference(weights, expected, relative=False) <= case.limit


IN_PROCESSES = ("MLP, SGD momentum", "two inputs, two outputs, Adam")


def test_two_processes_equal_a_plain_loop(runs: trainings.Runs) -> None:
    chosen = [case for case in cases.CASES if case.name in IN_PROCESSES]
    cells = cases.measure(runs, (cases.ProcessLayout(2, 1),), ("float64",), chosen)
    assert len(cells) == len(chosen)
    assert cases.faults(cells) == []


@pytest.mark.parametrize(
    ("name", "degrees"),
    [
        ("MLP, Adam", {"data": 2, "stage": 2, "tensor": 2}),
        ("CNN, SGD momentum", {"data": 2, "spatial": 2, "tensor": 2}),
    ],
)
def test_a_split_model_equals_a_plain_loop(name: str, degrees: dict[str, int]) -> None:
    case = next(case for case in cases.CASES if case.name == name)
    layout = next(candidate for candidate in cases_split.LAYOUTS if candidate.degrees == degrees)
    assert cases_split.applies(case, layout)
    compare_with_a_plain_loop(case, layout)


def compare_with_a_plain_loop(case: cases.Case, layout: cases_split.MeshLayout) -> None:
    with cases.precision("float64"):
        expected, expected_losses = cases_split.train_plainly(case, layout, 10)
        weights, losses = cases_split.train(case, layout, ranks.generation(), 10)
    assert cases.difference(weights, expected, relative=False) <= case.limit
    assert losses == pytest.approx(expected_losses, rel=1e-10)


TRAININGS = [
    (case, layout)
    for case in cases_split.CASES
    for layout in cases_split.WITH_OPTIONS
    if cases_split.applies(case, layout)
]
ORDINARY_TRAININGS = ("CNN, Adam on spatial 2", "Transformer, Adam on data 2 x stage 2")


@pytest.mark.parametrize(
    "training",
    repeats.some(
        TRAININGS,
        [
            (case, layout)
            for case, layout in TRAININGS
            if f"{case.name} on {layout}".startswith(ORDINARY_TRAININGS)
        ],
    ),
    ids=lambda training: f"{training[0].name} on {training[1]}",
)
def test_a_model_that_recomputes_equals_a_plain_loop(
    training: tuple[cases.Case, cases_split.MeshLayout],
) -> None:
    compare_with_a_plain_loop(*training)


def test_a_model_that_is_split_over_processes_equals_a_plain_loop(runs: trainings.Runs) -> None:
    layout = next(
        candidate
        for candidate in cases_split.APART
        if candidate.degrees == {"stage": 2, "tensor": 2}
    )
    chosen = [case for case in cases_split.TOGETHER if case.model == "MLP"]
    cells = cases_split.measure_together(runs, layout, "float64", chosen)
    assert len(cells) == 1
    assert cases.faults(cells) == []


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("names", "seeds"),
    [
        pytest.param(("MLP, Adam",), 2, id="two-seeds"),
        pytest.param(
            ("MLP, Adam", "LSTM, Adam"),
            len(cases_servers.SEEDS),
            id="all-seeds",
            marks=pytest.mark.long,
        ),
    ],
)
def test_one_worker_equals_a_plain_loop_and_two_end_with_the_same_losses(
    names: tuple[str, ...], seeds: int, runs: trainings.Runs
) -> None:
    chosen = [case for case in cases_servers.CASES if case.name in names]
    outcomes = cases_servers.measure(runs, chosen, ("float64",), cases_servers.SEEDS[:seeds])
    assert len(outcomes) == len(names)
    assert cases_servers.faults(outcomes) == []


def test_the_cases_cover_models_optimizers_and_layouts() -> None:
    features = " ".join(case.also for case in cases.CASES)
    for feature in ("clip", "accumulation", "masks", "sample weights", "weight decay"):
        assert feature in features
    assert "no dropout" in features
    assert {case.model for case in cases.CASES} == {
        "MLP",
        "CNN",
        "synchronized BatchNormalization",
        "LSTM",
        "Transformer",
        "two inputs, two outputs",
        "embedding",
    }
    assert {layout.processes for layout in cases.LAYOUTS} == {1, 2, 3}
