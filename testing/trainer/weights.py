"""Compares weights and states of training."""

import pathlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tfparallel_trainer.checkpoint import entries, files
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.storage import directory
from tfparallel_trainer.storage import folder as folders

TOLERANCE = 1e-10
"""Of weights in float64, after some tens of steps."""


def difference(weights: Sequence[Any], expected: Sequence[Any]) -> float:
    """Return the largest difference of a weight between two lists of arrays of equal shapes."""
    assert [array.shape for array in weights] == [array.shape for array in expected]
    return max(
        float(np.abs(array.astype("float64") - other).max())
        for array, other in zip(weights, expected, strict=True)
    )


def run_difference(folder: pathlib.Path, expected: Sequence[Any]) -> float:
    """Return the largest difference of a weight in a run's newest checkpoint from `expected`."""
    return difference(of_model(checkpoint(folder / "output")), expected)


def checkpoint(output: pathlib.Path, step: int | None = None) -> dict[str, Any]:
    """Read and verify the variables of a checkpoint, the newest by default."""
    folder = folders.Folder(output / outputs.CHECKPOINTS)
    return of_directory(
        entries.checkpoints(folder)[-1] if step is None else folder.child(entries.name(step))
    )


def of_files(path: pathlib.Path) -> dict[str, Any]:
    """Read and verify the variables of the checkpoint in a folder."""
    return of_directory(folders.Folder(path))


def of_directory(checkpoint: directory.Directory) -> dict[str, Any]:
    """Read and verify the variables of a checkpoint."""
    return dict(files.read(checkpoint, files.read_index(checkpoint)))


def of_model(variables: Mapping[str, Any]) -> list[Any]:
    """Return the model's weights among the variables of a checkpoint."""
    return [array for key, array in variables.items() if key.startswith("model/")]


def assert_same_bits(variables: Mapping[str, Any], expected: Mapping[str, Any]) -> None:
    """Assert that two checkpoints hold the same variables in the same order, bit for bit."""
    assert list(variables) == list(expected)
    for key, array in variables.items():
        assert array.tobytes() == expected[key].tobytes(), key
