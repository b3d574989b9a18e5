"""Initial weights from a file that Keras wrote, instead of random ones."""

import contextlib
import pathlib
import tempfile
import zipfile
from collections.abc import Iterator
from typing import Any

import h5py

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import archive, keys
from tfparallel_trainer.storage import fetch


def load(model: Any, setting: str, folder: pathlib.Path) -> None:
    """Assign the weights of a file to a built model; the optimizer's state stays as it is.

    `setting` is `trainer.initialWeights`: a path, relative to `folder` or absolute, or an address.
    """
    with reading(setting, folder) as path:
        with tempfile.TemporaryDirectory() as directory:
            written = pathlib.Path(directory) / f"here{archive.WEIGHTS}"
            model.save_weights(written)
            with archive.opened(path) as there, archive.opened(written) as here:
                compare(path, shapes(there), shapes(here))
        slots = [(variable, variable.value.numpy()) for variable in model.optimizer.variables]
        model.load_weights(path)
    for variable, value in slots:  # a compiled model's file also has the optimizer's state
        variable.assign(value)


@contextlib.contextmanager
def reading(setting: str, folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the path of a file of weights, or raise BadConfigurationError if it cannot be read."""
    path = folder / fetch.local(setting)
    if not path.name.endswith((archive.MODEL, archive.WEIGHTS)) or not path.is_file():
        raise errors.BadConfigurationError(
            f"trainer.initialWeights is {setting!r}: give a file that ends in "
            f"{archive.MODEL} or {archive.WEIGHTS} and is there; {path} is not."
        )
    try:
        yield path
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise errors.BadConfigurationError(
            f"trainer.initialWeights is {setting!r}, which cannot be read: "
            f"{' '.join(str(error).split())[:300]}."
        ) from error


def shapes(file: h5py.File) -> dict[str, tuple[int, ...]]:
    """The shapes of all datasets of a file of weights by name, without the optimizer's."""
    shapes_by_name: dict[str, tuple[int, ...]] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("optimizer/"):
            shapes_by_name[name] = tuple(item.shape)

    file.visititems(visit)
    return shapes_by_name


def compare(path: pathlib.Path, there: keys.Shapes, here: keys.Shapes) -> None:
    """Refuse (BadConfigurationError) a file whose datasets differ from the model's, `here`."""
    differing = keys.differences(there, here, str)
    if differing:
        raise errors.BadConfigurationError(
            f"trainer.initialWeights: {path} does not fit the model: "
            f"{differing}. Give the model the layers it was saved with, "
            "or leave initialWeights out."
        )
