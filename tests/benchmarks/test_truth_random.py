"""The part of the page on random jobs is whole, and would show a failure."""

import dataclasses
import pathlib

import pytest

from benchmarks.pages import truth, truth_random
from testing.trainer.random_models import drawing, outcomes


def outcome(layout: int, ending: outcomes.Ending, difference: float = 0.0) -> outcomes.Outcome:
    return outcomes.Outcome(0, layout, "Mirrored on 1x2", ending, "", difference)


def test_a_campaign_is_counted_by_strategy(tmp_path: pathlib.Path) -> None:
    state = outcomes.CampaignFile.open(tmp_path / "state.jsonl", 5)
    state.add(
        [
            outcome(0, outcomes.Ending.EQUAL, 2e-16),
            outcome(1, outcomes.Ending.REFUSED),
            outcome(2, outcomes.Ending.HUNG),
            outcome(3, outcomes.Ending.INVALID),
        ]
    )
    campaign = truth_random.summarise(state)
    assert campaign == truth_random.Campaign(
        seed=5,
        models=1,
        invalid=1,
        rows=(truth_random.Row("Mirrored", 1, 2e-16, 0, 1, 1),),
    )
    assert truth_random.parse(truth_random.section(campaign)) == campaign
    assert truth_random.faults(campaign) == []


def test_each_layout_has_a_row_that_says_its_axes() -> None:
    layouts = [layout for layout, _ in drawing.LAYOUTS]
    names = {str(layout): truth_random.strategy(str(layout)) for layout in layouts}
    assert names["ModelSplit stage 2, microbatches 2 on 1x2"] == "ModelSplit, stages"
    assert names["ModelSplit stage 2, tensor 2, microbatches 2 on 1x4"].endswith("several axes")
    assert names["ModelSplit tensor 2 on 2x1"] == "ModelSplit, 2 processes"
    assert names["MultiWorkerMirrored on 1x1"] == "one process"
    assert len(set(names.values())) == 10


def test_the_page_has_what_its_writer_writes() -> None:
    text = truth.part(truth_random.HEADING)
    campaign = truth_random.parse(text)
    assert truth_random.section(campaign).strip() == text.strip()
    assert truth_random.faults(campaign) == []


def test_a_row_that_lacks_is_missed_and_a_difference_is_named() -> None:
    text = truth.part(truth_random.HEADING)
    lines = text.splitlines()
    for number in [index for index, line in enumerate(lines) if line.startswith("| ")][1:]:
        with pytest.raises(ValueError, match="rows do not have"):
            truth_random.parse("\n".join(lines[:number] + lines[number + 1 :]))
    campaign = truth_random.parse(text)
    wrong = dataclasses.replace(campaign.rows[0], difference=1e-3)
    changed = dataclasses.replace(campaign, rows=(wrong, *campaign.rows[1:]))
    assert len(truth_random.faults(changed)) == 1
