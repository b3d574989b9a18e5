"""What Keras' own `fit` gives for the cases of tfparallel_trainer.fit."""

import functools
import pathlib
import warnings
from typing import Any

import numpy as np

from testing.trainer.models import fitted

Result = tuple[list[Any], dict[str, Any]]


@functools.cache
def train(name: str) -> Result:
    """What Keras' own fit gives in one process."""
    case = fitted.CASES[name]
    model = case.build()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of data that ends within an epoch
        history = model.fit(**case.data(), shuffle=False, verbose=0, **case.arguments())
    return model.get_weights(), history_of(history)


def history_of(history: Any) -> dict[str, Any]:
    """The history of a fit, as values."""
    return {"history": history.history, "epoch": history.epoch, "params": history.params}


def saved_weights(path: pathlib.Path) -> list[Any]:
    """The weights that a script has saved by `numpy.savez`."""
    with np.load(path) as arrays:
        return [arrays[key] for key in arrays.files]
