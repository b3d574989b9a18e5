"""The trained model as one file that plain Keras loads."""

import os
import pathlib
from typing import Any

from tfparallel_trainer import errors, user
from tfparallel_trainer.step import averages


def save(model: Any, path: pathlib.Path, module: pathlib.Path) -> None:
    """Write `model.keras`, so that readers see all of it or what was there before.

    With an optimizer that keeps averages of the weights (use_ema), those are what is written.

    Args:
        model: the trained model.
        path: where to.
        module: the user's module, for the messages.

    Raises:
        StorageError: the disk does not take it.
        UserCodeError: Keras cannot serialise a part of the model.
    """
    averages.adopt(model)
    draft = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        with user.guard(module, f"saving the model as {path.name} raised"):
            model.save(draft)
        draft.replace(path)
    except (OSError, errors.UserCodeError) as error:
        cause = error if isinstance(error, OSError) else error.__cause__
        if not isinstance(cause, OSError):
            raise
        raise errors.StorageError(
            f"{path} cannot be written ({cause}): see the disk's space; a new run goes on from the "
            "last checkpoint, where there is one."
        ) from error
    finally:
        draft.unlink(missing_ok=True)
