"""The newest checkpoints of two runs, compared bit by bit."""

import pathlib
from typing import Any

import numpy as np
import pytest

from tfparallel_trainer.checkpoint import bitwise

WEIGHTS = {"model/a": np.arange(4.0), "optimizer/m": np.ones(2), "seed": np.array([3])}


def compare(monkeypatch: pytest.MonkeyPatch, second: dict[str, Any], step: int = 9) -> Any:
    runs = {"first": (9, WEIGHTS), "second": (step, second)}
    monkeypatch.setattr(bitwise, "_read_newest", lambda path: runs[path.name])
    return bitwise.compare(pathlib.Path("first"), pathlib.Path("second"))


def test_equal_runs_are_bit_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compare(monkeypatch, {key: array.copy() for key, array in WEIGHTS.items()})
    assert (comparison.is_bit_equal, comparison.differing, comparison.largest_difference) == (
        True,
        0,
        0.0,
    )


def test_the_largest_difference_is_that_of_a_weight(monkeypatch: pytest.MonkeyPatch) -> None:
    changed = {**WEIGHTS, "model/a": np.array([0.0, 1.0, 2.5, 3.0]), "optimizer/m": np.zeros(2)}
    comparison = compare(monkeypatch, changed)
    assert (comparison.is_bit_equal, comparison.differing, comparison.largest_difference) == (
        False,
        2,
        0.5,
    )


def test_a_zero_with_another_sign_is_another_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compare(monkeypatch, {**WEIGHTS, "model/a": np.array([-0.0, 1.0, 2.0, 3.0])})
    assert (comparison.is_bit_equal, comparison.differing, comparison.largest_difference) == (
        False,
        1,
        0.0,
    )


@pytest.mark.parametrize(
    "array", [np.arange(5.0), np.array([0.0, np.nan, 2.0, 3.0]), None], ids=["shape", "nan", "none"]
)
def test_a_difference_without_bound_is_no_number(
    monkeypatch: pytest.MonkeyPatch, array: Any
) -> None:
    changed = {key: value for key, value in WEIGHTS.items() if key != "model/a"}
    comparison = compare(monkeypatch, changed if array is None else {**changed, "model/a": array})
    assert (comparison.differing, comparison.largest_difference) == (1, None)


def test_other_steps_are_never_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    comparison = compare(monkeypatch, WEIGHTS, step=8)
    assert (comparison.is_bit_equal, comparison.steps, comparison.differing) == (False, (9, 8), 0)


def test_a_run_without_a_checkpoint_is_no_run(tmp_path: pathlib.Path) -> None:
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(FileNotFoundError, match=r"checkpoints has no checkpoint"):
        bitwise.compare(tmp_path, tmp_path)
