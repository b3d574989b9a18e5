"""Models that others wrote train as docs/benchmarks/models.md says."""

from collections.abc import Sequence

import pytest

from benchmarks.pages import models
from testing.trainer import cases_models
from testing.trainer import runs as trainings

QUICK = [
    ("recommender_subclassed", (cases_models.FIT,)),
    ("switch_transformer", (cases_models.STAGES,)),
    ("tab_transformer", (cases_models.TENSOR,)),
    ("two_towers", (cases_models.WORKERS, cases_models.STAGES)),
]
ALL = [
    pytest.param(name, cases_models.layouts(name), marks=pytest.mark.long)
    for name in cases_models.MODELS
]


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("name", "layouts"), [*QUICK, *ALL])
def test_a_model_equals_one_process_or_is_refused_as_the_page_says(
    name: str, layouts: Sequence[cases_models.StrategyLayout], runs: trainings.Runs
) -> None:
    outcomes = cases_models.measure(runs, name, layouts)
    assert [outcome.fault for outcome in outcomes.values() if outcome.fault] == []
    row = models.parse(models.PAGE.read_text(encoding="utf-8"))[name]
    assert {layout: outcome.refusal for layout, outcome in outcomes.items()} == {
        layout: row[layout].refusal for layout in layouts
    }
