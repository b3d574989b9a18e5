"""The user's module: how it is found, what it must have, and how its errors are told.

`docs/how-to/model-interface.md` is the description for users.
"""

import ast
import contextlib
import copy
import dataclasses
import dis
import importlib.util
import inspect
import pathlib
import sys
import sysconfig
import traceback
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context  # the public API does not tell what opens devices

from tfparallel_trainer import errors, random_state
from tfparallel_trainer.contract import documentation, user_module
from tfparallel_trainer.lifecycle import error_classes
from tfparallel_trainer.storage import fetch

_COMPILES = "compile_model"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Information about the run for data functions."""

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
    """Called at the start and the end of each user function."""
    first_operation: str = ""
    """Where TensorFlow ran its first operation, if that was while the module was imported."""
    hints: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """For functions that the module lacks, a sentence on the one that seems to be meant."""

    def has(self, function: str) -> bool:
        """Whether the module brings a function that need not be there."""
        return function in self.functions

    @contextlib.contextmanager
    def restored(self) -> Iterator[None]:
        """Give what its functions may bind the values of before, after the body.

        These are globals of its module, and what dictionaries, lists and namespaces there hold.
        """
        spaces = [getattr(function, "__globals__", {}) for function in self.functions.values()]
        containers = {id(container): container for container in _containers(spaces)}.values()
        before = [(container, copy.copy(container)) for container in containers]
        try:
            yield
        finally:
            for container, values in before:
                if isinstance(container, list):
                    container[:] = values
                else:
                    container.update(values)

    def find_place(self, function: str = "") -> str:
        """Return where a function of the module is, and of compile_model the call of compile."""
        code = getattr(inspect.unwrap(self.functions.get(function, len)), "__code__", None)
        if code is None or not _inside(code.co_filename, self.path.parent):
            return str(self.path)
        line = code.co_firstlineno
        for instruction in dis.get_instructions(code) if function == _COMPILES else ():
            if instruction.argval == "compile" and instruction.positions is not None:
                line = instruction.positions.lineno or line
        return f"{code.co_filename}:{line}"

    @contextlib.contextmanager
    def concerns(self, function: str) -> Iterator[None]:
        """Let a refusal in the body that names no place have that of a function."""
        try:
            yield
        except errors.UserCodeError as error:
            error.function = error.function or function
            raise

    def locate(self, error: errors.UserCodeError) -> None:
        """Give a refusal that has no place that of the function to change, or the file."""
        error.place = error.place or self.find_place(error.function)
        error.hint = self.hints.get(error.function, "")

    def build_model(self) -> Any:
        """Call the user's build_model: gives whatever it returns."""
        return self.call("build_model")

    def compile_model(self, model: Any) -> None:
        """Call the user's compile_model, when there is one."""
        if self.has("compile_model"):
            self.call("compile_model", model)

    def call_with(self, name: str, argument: Any) -> Any:
        """Call a function with the argument if it takes one, and return what it returns."""
        parameters = inspect.signature(self.functions[name]).parameters
        return self.call(name, argument) if parameters else self.call(name)

    def call(self, name: str, *arguments: Any) -> Any:
        """Call a function: gives whatever it returns."""
        self.moved(f"the call of {name} began")
        with guard(self.path, f"{name} raised"):
            result = self.functions[name](*arguments)
        self.moved(f"the call of {name} ended")
        return result


def _containers(spaces: Iterable[dict[str, Any]]) -> Iterator[dict[Any, Any] | list[Any]]:
    """The namespaces of modules, and what is bound in them and binds names or places itself."""
    for space in spaces:
        yield space
        for name, value in space.items():
            if name.startswith("__"):
                continue
            if isinstance(value, dict | list):
                yield value
            elif isinstance(value, types.SimpleNamespace):
                yield vars(value)


def load(
    source_dir: pathlib.Path, name: str, moved: Callable[[str], None] = lambda _: None
) -> Module:
    """Import the user's module and check that it has the functions of the interface.

    Raises:
        BadConfigurationError: there is no such file.
        UserCodeError: importing it raises, or a function is missing or has an earlier name.
    """
    path = source_dir / name
    if not path.is_file():
        present = ", ".join(sorted(file.name for file in source_dir.glob("*.py"))) or "none"
        raise errors.BadConfigurationError(
            f"trainer.module is {name!r}, but {source_dir} has no such file "
            f"(Python files there: {present}): name one of them."
        )
    moved(f"the import of {name} began")
    module, first_operation = _import(path, source_dir)
    moved(f"the import of {name} ended")
    interface = (*user_module.REQUIRED, *user_module.OPTIONAL)
    values = {function: getattr(module, function, None) for function in interface}
    functions = {function: value for function, value in values.items() if callable(value)}
    # A module is none of the functions: `from keras import callbacks` leaves one.
    absences = (types.NoneType, types.ModuleType)
    missing = [function for function, value in values.items() if isinstance(value, absences)]
    hints = _find_hints(path, missing)
    loaded = Module(path, functions, moved=moved, first_operation=first_operation, hints=hints)
    for function in user_module.RENAMED:
        if hasattr(module, function) and user_module.RENAMED[function] in missing:
            description = user_module.describe_renamed(function)
            raise errors.UserCodeError(
                f"{description[0].upper()}{description[1:]}.", place=str(path)
            )
    for function in interface:
        if function in functions or (function in missing and function in user_module.OPTIONAL):
            continue
        what = "is missing" if function in missing else "is not a function"
        section = documentation.reference(documentation.Section.MODEL_FILE)
        error = errors.UserCodeError(
            f"{function} {what}: define it (see {section}).", function=function
        )
        loaded.locate(error)
        raise error
    return loaded


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
        sentence = f"{what} {type(error).__name__}: {error_classes.read_message(error)}"
        if error_classes.of_device(error):
            raise errors.DeviceError(f"{path}: {sentence}. {error_classes.DEVICE_HELP}") from error
        if error_classes.of_storage(error):
            raise errors.StorageError(
                f"{path}: {sentence}. The job runs again, because storage and networks recover; "
                "if it comes every time, see the address and whether the cluster may reach it."
            ) from error
        if errors.is_read_only(error):
            sentence = (
                f"{sentence}. In a cluster, the folder of the module is read-only: write below "
                "context.output_dir."
            )
        line = find_line(error, path.parent) or str(path)
        raise errors.UserCodeError(sentence, trace(error, path.parent), place=line) from error


def trace(error: BaseException, folder: pathlib.Path) -> str:
    """Format a traceback from the first frame in the user's folder on, without the trainer's."""
    trainer = pathlib.Path(__file__).parent
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not _inside(frame.filename, trainer)
    ]
    user_frames = [index for index, frame in enumerate(frames) if _inside(frame.filename, folder)]
    kept = frames[user_frames[0] :] if user_frames else frames[-3:]
    return "".join(traceback.format_list(kept))


def find_line(error: BaseException, folder: pathlib.Path) -> str:
    """Return the file and line of the user's folder that raised; empty if none did."""
    lines = [
        f"{frame.filename}:{frame.lineno}"
        for frame in traceback.extract_tb(error.__traceback__)
        if _inside(frame.filename, folder) and _is_by_a_user(frame.filename)
    ]
    return lines[-1] if lines else ""


def describe(thing: Any) -> str:
    """Return the name of a function, a class or an object's class, and the user's line of it."""
    named = thing if hasattr(thing, "__name__") else type(thing)
    if (named.__module__ or "").startswith("keras."):
        return str(named.__name__)
    try:
        filename = inspect.getsourcefile(named) or ""
        _, line = inspect.getsourcelines(named)
    except (OSError, TypeError):  # code without a file
        return str(named.__name__)
    if not _is_by_a_user(filename):
        return str(named.__name__)
    return f"{named.__name__} ({pathlib.Path(filename).name}:{line})"


def _is_by_a_user(filename: str) -> bool:
    """Whether a file is neither the trainer's, nor Python's, nor that of a package."""
    path = pathlib.Path(filename)
    installed = (pathlib.Path(__file__).parent, pathlib.Path(sysconfig.get_path("stdlib")))
    is_package = "site-packages" in path.parts or "dist-packages" in path.parts
    return not is_package and not any(path.is_relative_to(folder) for folder in installed)


def _inside(filename: str, folder: pathlib.Path) -> bool:
    if filename.startswith("<"):  # Python's own, such as <frozen importlib._bootstrap>
        return False
    return pathlib.Path(filename).resolve().is_relative_to(folder.resolve())


def _find_hints(path: pathlib.Path, missing: Iterable[str]) -> dict[str, str]:
    misnamed = user_module.find_misnamed(ast.parse(path.read_bytes()), missing)
    return {
        function: f"{path.name} defines {name}, which the trainer does not call: if that is"
        f" {function}, rename it."
        for function, name in misnamed.items()
    }


def _import(path: pathlib.Path, source_dir: pathlib.Path) -> tuple[types.ModuleType, str]:
    """Import a file; gives the module, and where TensorFlow ran its first operation meanwhile."""
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
    with guard(path, "importing it raised"), _noting_operations(path.parent) as places:
        spec.loader.exec_module(module)
    return module, places[0] if places else ""


@contextlib.contextmanager
def _noting_operations(folder: pathlib.Path) -> Iterator[list[str]]:
    """Note the line of the user's folder in the body at which TensorFlow opens its devices."""
    places: list[str] = []
    original = context.Context.ensure_initialized

    def ensure_initialized(self: Any) -> None:
        if not self._initialized and not places:
            frames = traceback.extract_stack()
            lines = [frame for frame in frames if _inside(frame.filename, folder)]
            places.extend(f"{frame.filename}:{frame.lineno}" for frame in lines[-1:])
        original(self)

    context.Context.ensure_initialized = ensure_initialized
    try:
        yield places
    finally:
        context.Context.ensure_initialized = original
