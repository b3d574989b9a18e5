"""Finds the layout of a .keras or .weights.h5 file without the model's values.

Keras writes the file itself, with a small number in place of each variable. So the dataset of each
variable is known, not guessed, and values can be written or read slice by slice.
"""

import contextlib
import io
import pathlib
import zipfile
from collections.abc import Callable, Iterator, Mapping
from typing import IO, Any

import h5py
import keras
import ml_dtypes
import numpy as np
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files

MODEL, WEIGHTS = ".keras", ".weights.h5"
INSIDE = "model.weights.h5"
"""Where a .keras file holds its weights."""
OPTIMIZER = "optimizer"
"""Where a file of weights holds the state of the optimizer."""

_FIRST_TOKEN = 0x5A17 << 33
"""The first number that represents a variable; float64 holds all of them exactly."""
_LORA = "lora"
"""Part of the path of weights that Keras adds to others before it writes them."""
_DTYPE = "dtype"
"""The attribute by which Keras marks datasets of a type that HDF5 does not have."""


class _Tokens(keras.StatelessScope):  # type: ignore[misc]  # Keras has no types
    """While it is open, the given variables have numbers as their values."""

    def __init__(self, variables: Mapping[str, Any]) -> None:
        super().__init__(initialize_variables=False)
        self._places = {id(variable): index for index, variable in enumerate(variables.values())}

    def get_current_value(self, variable: Any) -> Any:
        index = self._places.get(id(variable))
        return None if index is None else tf.constant(_FIRST_TOKEN + index, tf.int64)


def save(model: Any, path: pathlib.Path, weights: Mapping[str, Any]) -> None:
    """Let Keras write a model, or by the path its weights, with a number for each variable.

    The model is written without its optimizer, because Keras could not build another one among such
    numbers. If Keras computes with the weights, as for LoRA, it is a UserCodeError.
    """
    write = model.save if path.name.endswith(MODEL) else model.save_weights
    optimizer = model.optimizer
    model.optimizer = None
    try:
        with _Tokens(weights):
            write(path)
    except tf.errors.InvalidArgumentError as error:
        raise _changed(str(error)) from error
    finally:
        model.optimizer = optimizer


def save_optimizer(optimizer: Any, path: pathlib.Path, slots: Mapping[str, Any]) -> None:
    """Let Keras write a file of weights whose optimizer is this one.

    Args:
        optimizer: built for stand-ins of type float64.
        path: ends in .weights.h5.
        slots: those of its variables, by key, that are not written with their values.
    """
    for index, slot in enumerate(slots.values()):
        slot.assign(np.full(slot.shape, _FIRST_TOKEN + index, np.float64))
    carrier = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    carrier.compile(optimizer, auto_scale_loss=False)
    carrier.save_weights(path)


def places(file: h5py.Group, variables: Mapping[str, Any]) -> dict[str, str]:
    """Map datasets to the keys of variables. A missing variable is a UserCodeError."""
    names = list(variables)
    keys: dict[str, str] = {}

    def visit(name: str, item: Any) -> None:
        index = _token(item)
        if index is not None:
            keys[name] = names[index]

    file.visititems(visit)
    stored = set(keys.values())
    for key, variable in variables.items():
        if key not in stored:
            raise _changed(variable.path) if _LORA in variable.path else _left_out(variable.path)
    return keys


def fill(
    source: h5py.Group,
    target: h5py.Group,
    keys: Mapping[str, str],
    arrays: Mapping[str, files.Entry],
    content: Callable[[str, h5py.Dataset], None],
) -> None:
    """Copy a file of weights, with values where it has numbers.

    Args:
        source: the file without values, or a group of it.
        keys: as `places` gives them.
        arrays: shapes and types of the variables by key.
        content: puts the values of a variable, by key, into a dataset.
    """

    def visit(name: str, item: Any) -> None:
        if name in keys:
            array = arrays[keys[name]]
            kind = np.dtype(tf.as_dtype(array.dtype).as_numpy_dtype)
            placed = target.create_dataset(name, array.shape, kind)
            if array.dtype == "bfloat16":
                placed.attrs[_DTYPE] = array.dtype
            content(keys[name], placed)
        elif isinstance(item, h5py.Group):
            target.create_group(name).attrs.update(item.attrs)
        else:
            source.copy(item, target, name)

    target.attrs.update(source.attrs)
    source.visititems(visit)


def put_together(empty: pathlib.Path, weights: pathlib.Path, target: pathlib.Path) -> None:
    """Write a .keras file that has the weights of a file, and the rest of another .keras file."""
    with zipfile.ZipFile(empty) as source, zipfile.ZipFile(target, "w") as archive:
        for entry in source.infolist():
            if entry.filename != INSIDE:
                archive.writestr(entry, source.read(entry))
        archive.write(weights, INSIDE)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[h5py.File]:
    """Open the weights in a .keras or .weights.h5 file, without a copy.

    Raises:
        OSError: the file cannot be read.
        KeyError: there are no weights in it.
        zipfile.BadZipFile: it is damaged.
    """
    with contextlib.ExitStack() as stack:
        source: Any = path
        if path.name.endswith(MODEL):
            archive = stack.enter_context(zipfile.ZipFile(path))
            source = stack.enter_context(_member(archive, path))
        yield stack.enter_context(h5py.File(source, "r"))


def value(dataset: h5py.Dataset, part: tuple[slice, ...]) -> Any:
    """Read a part of a variable."""
    content = dataset[part]
    if dataset.attrs.get(_DTYPE) == "bfloat16":
        return np.asarray(content).view(ml_dtypes.bfloat16)
    return np.asarray(content)


def _member(archive: zipfile.ZipFile, path: pathlib.Path) -> IO[bytes]:
    info = archive.getinfo(INSIDE)
    if info.compress_type != zipfile.ZIP_STORED:
        return archive.open(info)
    with path.open("rb") as raw:
        raw.seek(info.header_offset + 26)
        name, extra = (int.from_bytes(raw.read(2), "little") for _ in range(2))
    start = info.header_offset + 30 + name + extra
    return io.BufferedReader(_Window(path, start, info.file_size))


class _Window(io.FileIO):
    """A part of a file as a file. To seek, zipfile would read everything before the position."""

    def __init__(self, path: pathlib.Path, start: int, size: int) -> None:
        super().__init__(path)
        self._start = start
        self._size = size
        self.seek(0)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self.tell(), io.SEEK_END: self._size}[whence]
        return super().seek(self._start + base + offset) - self._start

    def tell(self) -> int:
        return super().tell() - self._start

    def readinto(self, buffer: Any) -> int | None:
        return super().readinto(memoryview(buffer)[: max(0, self._size - self.tell())])


def _changed(what: str) -> errors.UserCodeError:
    return errors.UserCodeError(
        "Keras does not write all weights as they are: LoRA and quantization change them "
        f"({what}). So the divided model could not be saved as one file. Leave that out of "
        "build_model, or use the strategy MultiWorkerMirrored.",
        function="build_model",
    )


def _left_out(path: str) -> errors.UserCodeError:
    return errors.UserCodeError(
        f"Keras does not write {path}, because save_own_variables of its layer leaves it out, so "
        "the divided model could not be saved as one file. Let save_own_variables and "
        "load_own_variables of the layer have it, too.",
        function="build_model",
    )


def _token(item: Any) -> int | None:
    """Return the number of the variable that a dataset represents."""
    if not isinstance(item, h5py.Dataset) or item.size == 0:
        return None
    if item.dtype == np.float64 or (item.dtype == np.int64 and item.shape == ()):
        index = int(np.ravel(item[()])[0]) - _FIRST_TOKEN
        return index if 0 <= index < 1 << 32 else None
    return None
