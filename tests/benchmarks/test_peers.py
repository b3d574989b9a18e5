"""The page of competitors shows what was measured, and only of equal work."""

import dataclasses
import math

import pytest

from benchmarks.pages import peers
from benchmarks.peers.competitors import RunTimes

SAMPLES = {
    "trainer": [
        RunTimes(0.004, 3.0, 4.158),
        RunTimes(0.002, 2.0, 4.158),
        RunTimes(0.003, 9.0, 4.158),
    ],
    "PyTorch": [
        RunTimes(0.002, 1.0, 4.157),
        RunTimes(0.002, 2.0, 4.157),
        RunTimes(0.002, 3.0, 4.157),
    ],
}


def test_rows_have_medians_and_the_ratio_to_each_other_side() -> None:
    steps = peers.steps_table({"dense": SAMPLES})
    assert steps == [
        "| step, ms | trainer | PyTorch | loss |",
        "|---|---|---|---|",
        "| 20 dense layers of 64, batch 128 | 3 (2…4) | 2 (2…2) **1.50 x** | 4.15700…4.15800 |",
    ]
    starts = peers.starts_table({"dense": SAMPLES})
    assert starts[2] == "| 20 dense layers of 64, batch 128 | 3 (2…9) | 2 (1…3) **1.50 x** |"


def test_sides_that_train_differently_are_refused() -> None:
    peers.check_losses("dense", SAMPLES)
    other = [dataclasses.replace(sample, loss=4.2) for sample in SAMPLES["PyTorch"]]
    with pytest.raises(ValueError, match="dense: the sides do not train alike"):
        peers.check_losses("dense", {**SAMPLES, "PyTorch": other})


@pytest.mark.long
@pytest.mark.usefixtures("processes")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("title", ["two", "one"])
def test_competitors_do_equal_work(title: str) -> None:
    table = dataclasses.replace(peers.TABLES[title], names=("dense",))
    measured = peers.measure(table, 1)
    for samples in measured["dense"].values():
        assert 0 < samples[0].step < samples[0].start < math.inf
