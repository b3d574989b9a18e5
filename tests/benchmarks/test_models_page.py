"""The page of models that others wrote is whole and within its limits."""

from benchmarks.pages import models
from testing.trainer import cases_models

TEXT = models.PAGE.read_text(encoding="utf-8")
OUTCOMES = models.parse(TEXT)


def test_each_model_has_its_row_with_all_its_layouts() -> None:
    files = {path.stem for path in cases_models.FOLDER.glob("*.py")}
    assert files == set(cases_models.MODELS)
    assert {name: list(row) for name, row in OUTCOMES.items()} == {
        name: cases_models.layouts(name) for name in cases_models.MODELS
    }


def test_each_model_is_equal_to_one_process_or_refused() -> None:
    for name, row in OUTCOMES.items():
        for layout, outcome in row.items():
            if outcome.difference is None:
                assert outcome.refusal, (name, layout)
            else:
                assert outcome.difference <= cases_models.limit(name), (name, layout)


def test_each_model_says_where_it_comes_from() -> None:
    assert all(models.source(name) for name in cases_models.MODELS)


def test_the_text_of_the_page_is_what_its_writer_writes() -> None:
    assert models.page(OUTCOMES) == TEXT
