"""The trained model as files that other programs load."""

import contextlib
import json
import pathlib
import shutil
import traceback
import warnings
from collections.abc import Iterator
from typing import Any

import keras

from tfparallel_trainer import errors, user
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.objective import evaluate
from tfparallel_trainer.storage import durable


def check(model: Any, module: pathlib.Path) -> None:
    """Refuse (UserCodeError) before training a model that Keras cannot describe in a file."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # saving repeats these warnings
            json.dumps(keras.saving.serialize_keras_object(model))
    except Exception as error:
        part = _unwritten(error) or type(model).__name__
        reason = " ".join(str(error).split()).partition(". ")[0][:300] or type(error).__name__
        raise errors.UserCodeError(
            f"the trained model could not be saved as {outputs.MODEL}, because Keras cannot write "
            f"down {part} ({reason}). Let {part}.get_config return the arguments of __init__, as "
            "numbers, strings, lists or Keras objects, and decorate the class with "
            "@keras.saving.register_keras_serializable().",
            "" if isinstance(error, NotImplementedError) else user.trace(error, module.parent),
            place=user.find_line(error, module.parent) or str(module),
        ) from error


def _unwritten(error: Exception) -> str | None:
    """The class of the innermost object whose configuration Keras was writing."""
    parts = [
        frame.f_locals.get("obj")
        for frame, _ in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_name == keras.saving.serialize_keras_object.__name__
    ]
    names = [type(part).__name__ for part in parts if hasattr(part, "get_config")]
    return names[-1] if names else None


def save(model: Any, path: pathlib.Path, module: pathlib.Path) -> None:
    """Write `model.keras`, so that readers see all of it or what was there before.

    If the optimizer keeps averages of the weights (use_ema), these are written, and stay in the
    model. Raises as `storing` does.
    """
    evaluate.adopt_averages(model)
    draft = durable.draft(path)
    with storing(path, module):
        durable.remove_drafts(path)
        try:
            model.save(draft)
            durable.publish(draft, path)
        finally:
            draft.unlink(missing_ok=True)


def check_for_serving(model: Any, folder: pathlib.Path, module: pathlib.Path) -> None:
    """Check before training that `save_for_serving` works, and that the disk has room for it."""
    with _exported(model, folder, module):
        pass


def save_for_serving(model: Any, folder: pathlib.Path, module: pathlib.Path) -> None:
    """Write a SavedModel into a folder of its own, after `save`; raises as that does."""
    with _exported(model, folder, module) as draft:
        durable.publish(draft, folder)


@contextlib.contextmanager
def _exported(model: Any, folder: pathlib.Path, module: pathlib.Path) -> Iterator[pathlib.Path]:
    """Write a SavedModel next to a folder, and yield its path."""
    draft = durable.draft(folder)
    with storing(folder, module):
        durable.remove_drafts(folder)
        try:
            model.export(draft, verbose=False)
            yield draft
        finally:
            shutil.rmtree(draft, ignore_errors=True)


@contextlib.contextmanager
def storing(path: pathlib.Path, module: pathlib.Path) -> Iterator[None]:
    """Turn an OSError of the body into a StorageError, and another error into a UserCodeError."""
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
