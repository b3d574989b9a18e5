"""Compares the newest checkpoints of two runs, bit by bit, and prints the result as JSON.

Usage: python -m tfparallel_trainer.checkpoint.bitwise RESULTS RESULTS
"""

import math
import pathlib
import sys
from collections.abc import Mapping
from typing import Any

import numpy as np

from tfparallel_trainer.checkpoint import entries, files
from tfparallel_trainer.contract import outputs, weight_comparison
from tfparallel_trainer.storage import folder

_MODEL = "model/"
"""Start of the keys of a model's variables."""


def compare(first: pathlib.Path, second: pathlib.Path) -> weight_comparison.WeightComparison:
    """Compare the newest checkpoints of two folders of results.

    Raises:
        FileNotFoundError: a folder has no checkpoint.
        DamagedError: a checkpoint is damaged.
    """
    steps, variables = zip(*(_read_newest(path) for path in (first, second)), strict=True)
    ours, theirs = variables
    keys = {**ours, **theirs}
    differing = [key for key in keys if not _has_same_bits(ours.get(key), theirs.get(key))]
    differences = [
        _find_largest_difference(ours.get(key), theirs.get(key))
        for key in differing
        if key.startswith(_MODEL)
    ]
    largest = max(differences, default=0.0)
    return weight_comparison.WeightComparison(
        steps=steps,
        is_bit_equal=not differing and steps[0] == steps[1],
        differing=len(differing),
        largest_difference=largest if math.isfinite(largest) else None,
    )


def _read_newest(results: pathlib.Path) -> tuple[int, Mapping[str, Any]]:
    saved = entries.checkpoints(folder.Folder(results / outputs.CHECKPOINTS))
    if not saved:
        raise FileNotFoundError(f"{results / outputs.CHECKPOINTS} has no checkpoint")
    index = files.read_index(saved[-1])
    return index.position.step, dict(files.read(saved[-1], index))


def _has_same_bits(ours: Any, theirs: Any) -> bool:
    if ours is None or theirs is None or (ours.shape, ours.dtype) != (theirs.shape, theirs.dtype):
        return False
    return bool(ours.tobytes() == theirs.tobytes())


def _find_largest_difference(ours: Any, theirs: Any) -> float:
    """Return the largest difference of two elements; infinity: it cannot be given."""
    if ours is None or theirs is None or ours.shape != theirs.shape:
        return math.inf
    difference = np.abs(ours.astype("float64") - theirs.astype("float64"))
    return float(np.nan_to_num(difference, nan=math.inf).max(initial=0.0))


if __name__ == "__main__":
    print(compare(*map(pathlib.Path, sys.argv[1:])).model_dump_json(by_alias=True))
