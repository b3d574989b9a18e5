"""The trained model as one file that plain Keras loads."""

import os
import pathlib
from typing import Any


def save(model: Any, path: pathlib.Path) -> None:
    """Write `model.keras`, so that readers see all of it or what was there before.

    With an optimizer that keeps averages of the weights (use_ema), those are what is written.

    Raises:
        OSError: the disk does not take it.
        ValueError, TypeError: Keras cannot serialise a part of the model.
    """
    model.optimizer.finalize_variable_values(model.trainable_variables)
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        model.save(draft)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
