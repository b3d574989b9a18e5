"""The user's module: how it is found, what it must have, and how its errors are told.

`docs/how-to/model-interface.md` is the description for users.
"""

import contextlib
import dataclasses
import importlib.util
import inspect
import pathlib
import sys
import traceback
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.contract import documentation, user_module
from tfparallel_trainer.runtime import random_state
from tfparallel_trainer.runtime.lifecycle import faults
from tfparallel_trainer.storage import fetch


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What a data function may want to know."""

    seed: int
    """The job's seed: derive every random choice from it and from the epoch."""
    epoch: int
    """The epoch that the data is for, from 0."""
    global_batch_size: int
    """Examples in one optimizer step over all replicas together."""
    source_dir: pathlib.Path
    """Folder of the module and its other files."""
    output_dir: pathlib.Path
    """Folder of checkpoints, model and logs; with trainer.checkpoint.uri, of model and logs."""

    def fetch(self, address: str) -> pathlib.Path:
        """Copy an object of a bucket to the local disk, once for all processes of a machine.

        The address s3://bucket/key or gs://bucket/key gives a local file. One that ends with a
        slash gives a local folder of all objects below.
        """
        return fetch.fetch(address)


@dataclasses.dataclass(frozen=True)
class Module:
    """The functions of a user's module, each called with its errors translated."""

    path: pathlib.Path
    functions: Mapping[str, Callable[..., Any]]
    seeded: Callable[[int], contextlib.AbstractContextManager[None]] = random_state.seeded_for_good
    """Gives the context with generators of a seed, in which functions of the user are called."""
    moved: Callable[[str], None] = lambda _: None
    """Hears that a call begins and ends."""

    def has(self, function: str) -> bool:
        """Whether the module brings a function that need not be there."""
        return function in self.functions

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Give globals of the module, which its functions may bind, their values after the body."""
        spaces = [getattr(one, "__globals__", {}) for one in self.functions.values()]
        before = [(space, dict(space)) for space in spaces]
        try:
            yield
        finally:
            for space, values in before:
                space.update(values)

    def build_model(self) -> Any:
        """Call the user's build_model: gives whatever it returns."""
        return self.call("build_model")

    def compile_model(self, model: Any) -> None:
        """Call the user's compile_model, when there is one."""
        if self.has("compile_model"):
            self.call("compile_model", model)

    def call_with(self, name: str, known: Any) -> Any:
        """Call a function that may want to know something, or not: gives whatever it returns."""
        parameters = inspect.signature(self.functions[name]).parameters
        return self.call(name, known) if parameters else self.call(name)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function: gives whatever it returns."""
        self.moved(f"the call of {name} began")
        with guard(self.path, f"{name} raised"):
            result = self.functions[name](*arguments)
        self.moved(f"the call of {name} ended")
        return result


def load(
    source_dir: pathlib.Path, name: str, moved: Callable[[str], None] = lambda _: None
) -> Module:
    """Import the user's module and check that it has the functions of the interface.

    Raises:
        BadConfigurationError: there is no such file.
        UserCodeError: importing it raises, or a function is missing.
    """
    path = source_dir / name
    if not path.is_file():
        present = ", ".join(sorted(file.name for file in source_dir.glob("*.py"))) or "none"
        raise errors.BadConfigurationError(
            f"trainer.module is {name!r}, but {source_dir} has no such file "
            f"(Python files there: {present}): name one of them."
        )
    moved(f"the import of {name} began")
    module = _import(path, source_dir)
    moved(f"the import of {name} ended")
    functions: dict[str, Callable[..., Any]] = {}
    for function in (*user_module.REQUIRED, *user_module.OPTIONAL):
        value = getattr(module, function, None)
        if callable(value):
            functions[function] = value
        elif value is not None or function in user_module.REQUIRED:
            what = "is not a function" if value is not None else "is missing"
            section = documentation.reference(documentation.Section.MODEL_FILE)
            raise errors.UserCodeError(f"{path}: {function} {what}: define it (see {section}).")
    return Module(path, functions, moved=moved)


@contextlib.contextmanager
def guard(path: pathlib.Path, what: str) -> Iterator[None]:
    """Turn what the user's code raises into a UserCodeError with the user's own frames.

    Faults of devices and of storage are none of the user's: those may pass. Frames before the first
    one in the folder of the module are left out. `what` begins the sentence: "build_model raised".
    """
    try:
        yield
    except (errors.TrainerError, MemoryError, tf.errors.ResourceExhaustedError):
        raise
    except (Exception, SystemExit) as error:
        message = " ".join(str(error).split())[:500]
        sentence = f"{path}: {what} {type(error).__name__}: {message}"
        if faults.of_device(error):
            raise errors.DeviceError(f"{sentence}. {faults.DEVICE_HELP}") from error
        if faults.of_storage(error):
            raise errors.StorageError(
                f"{sentence}. The job runs again, because storage and networks recover; if it "
                "comes every time, see the address and whether the cluster may reach it."
            ) from error
        raise errors.UserCodeError(sentence, trace(error, path.parent)) from error


def trace(error: BaseException, folder: pathlib.Path) -> str:
    """Format a traceback from the first frame in the user's folder on, without the trainer's."""
    trainer = pathlib.Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _inside(frame.filename, trainer)
    ]
    user_frames = [place for place, frame in enumerate(frames) if _inside(frame.filename, folder)]
    kept = frames[user_frames[0] :] if user_frames else frames[-3:]
    return "".join(traceback.format_list(kept))


def _inside(filename: str, folder: pathlib.Path) -> bool:
    if filename.startswith("<"):  # Python's own, such as <frozen importlib._bootstrap>
        return False
    return pathlib.Path(filename).resolve().is_relative_to(folder.resolve())


def _import(path: pathlib.Path, source_dir: pathlib.Path) -> types.ModuleType:
    name = f"tfparallel_user_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise errors.BadConfigurationError(
            f"trainer.module is {path.name!r}, which is no Python file: name one that ends in .py."
        )
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    if str(source_dir) not in sys.path:
        sys.path.insert(0, str(source_dir))
    with guard(path, "importing it raised"):
        spec.loader.exec_module(module)
    return module
