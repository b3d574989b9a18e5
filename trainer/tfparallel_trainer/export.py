"""The trained model as files that other programs load."""

import contextlib
import os
import pathlib
import shutil
from collections.abc import Iterator
from typing import Any

from tfparallel_trainer import errors, user
from tfparallel_trainer.step import averages


def save(model: Any, path: pathlib.Path, module: pathlib.Path) -> None:
    """Write `model.keras`, so that readers see all of it or what was there before.

    With an optimizer that keeps averages of the weights (use_ema), those are what is written, and
    what the model has from now on.

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
    with storing(path, module):
        try:
            model.save(draft)
            draft.replace(path)
        finally:
            draft.unlink(missing_ok=True)


def save_for_serving(model: Any, folder: pathlib.Path, module: pathlib.Path) -> None:
    """Write a SavedModel into a folder of its own, after `save`.

    Raises:
        StorageError: the disk does not take it.
        UserCodeError: Keras cannot export the model.
    """
    draft = folder.with_name(f".{os.getpid()}.{folder.name}")
    with storing(folder, module):
        try:
            model.export(draft, verbose=False)
            shutil.rmtree(folder, ignore_errors=True)
            draft.rename(folder)
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def storing(path: pathlib.Path, module: pathlib.Path) -> Iterator[None]:
    """Tell a disk that does not take the model from a model that cannot be written.

    Raises:
        StorageError: the body raised an OSError.
        UserCodeError: it raised anything else.
    """
    try:
        with user.guard(module, f"saving the model as {path.name} raised"):
            yield
    except errors.UserCodeError as error:
        if not isinstance(error.__cause__, OSError):
            raise
        raise errors.StorageError(
            f"{path} cannot be written ({error.__cause__}): see the disk's space; a new run goes "
            "on from the last checkpoint, where there is one."
        ) from error
