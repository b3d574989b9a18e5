"""The files that a job leaves, and the places that keep them."""

import dataclasses
import enum
import pathlib
import re
import stat
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Protocol

from tfparallel_trainer.contract import outputs

_STEP = re.compile(
    rf"(?P<folder>{re.escape(outputs.CHECKPOINTS)}/step-(?P<step>\d{{1,20}})[^/]*/)index\.json"
)
"""The index of a checkpoint that is whole: in a bucket, others have no file of this name."""
_NO_FILE = "it is a link to nothing, or no file"
_OUTSIDE = "it is a link that leads out of the results"
_ALL = (
    outputs.MODEL,
    f"{outputs.SAVED_MODEL}/",
    outputs.SUMMARY,
    outputs.TRAIN_LOG,
    outputs.EVALUATION,
    outputs.EVALUATION_LOG,
    f"{outputs.TENSORBOARD}/",
)


EVENTS = "events.out.tfevents.*"
"""The names of TensorBoard's event files."""

_SUFFIX = pathlib.PurePosixPath(outputs.MODEL).suffix


class ResultSelection(enum.Enum):
    """How much of the results."""

    MODEL = "model"
    ALL = "all"
    """The model, the SavedModel, the summary, the logs and the last checkpoint; all of a script."""
    TENSORBOARD = "tensorboard"


@dataclasses.dataclass(frozen=True, slots=True)
class ResultFile:
    """A file of a job's results."""

    path: str
    """Below the results, with slashes."""
    size: int
    problem: str = ""
    """Why it is not brought; empty for a file that is."""


GONE = "it was removed meanwhile"
UNREADABLE = "it cannot be read"


class LeftOutError(Exception):
    """A file does not come; the text says why."""


class Store(Protocol):
    """Where a job keeps its results."""

    async def list_files(self) -> Sequence[ResultFile]:
        """Return all files, but none that is being written."""

    def read(self, file: ResultFile, offset: int) -> AsyncIterator[bytes]:
        """Yield the content of a file from a byte on; a LeftOutError if that cannot be."""

    async def compute_digest(self, file: ResultFile) -> str | None:
        """Return the SHA-256 of what was listed; None: the place checks what it sends.

        Raises:
            LeftOutError: the file was removed, or cannot be read.
        """


def describe(path: pathlib.Path, root: pathlib.Path) -> ResultFile:
    """Describe what a folder has at a path; links are followed only within the folder."""
    name = path.relative_to(root).as_posix()
    try:
        if not path.resolve().is_relative_to(root.resolve()):
            return ResultFile(name, 0, _OUTSIDE)
        status = path.stat()
    except (OSError, RuntimeError):  # a RuntimeError is a circle of links
        return ResultFile(name, 0, _NO_FILE)
    return ResultFile(name, status.st_size, "" if stat.S_ISREG(status.st_mode) else _NO_FILE)


def select(
    files: Sequence[ResultFile], part: ResultSelection, *, is_script: bool = False
) -> list[ResultFile]:
    """Return the files of a part of the results, by path.

    Args:
        is_script: whether a script chose their names, and not the shipped trainer.
    """
    chosen = _select_of_script(files, part) if is_script else _select(files, part)
    return sorted(chosen, key=lambda file: file.path)


def _select_of_script(files: Sequence[ResultFile], part: ResultSelection) -> Iterator[ResultFile]:
    pattern = {
        ResultSelection.MODEL: f"*{_SUFFIX}",
        ResultSelection.ALL: "*",
        ResultSelection.TENSORBOARD: EVENTS,
    }[part]
    return (file for file in files if pathlib.PurePosixPath(file.path).match(pattern))


def _select(files: Sequence[ResultFile], part: ResultSelection) -> Iterator[ResultFile]:
    prefixes = {
        ResultSelection.MODEL: (outputs.MODEL,),
        ResultSelection.ALL: (*_ALL, *_last_checkpoint(files)),
        ResultSelection.TENSORBOARD: (f"{outputs.TENSORBOARD}/",),
    }[part]
    for file in files:
        if any(_is_below(file.path, prefix) for prefix in prefixes):
            yield file


def _is_below(path: str, prefix: str) -> bool:
    return path.startswith(prefix) if prefix.endswith("/") else path == prefix


def _last_checkpoint(files: Sequence[ResultFile]) -> tuple[str, ...]:
    """Return the folder of the checkpoint with the most steps, with a slash at its end."""
    matches = filter(None, (_STEP.fullmatch(file.path) for file in files))
    last = max(matches, key=lambda match: int(match["step"]), default=None)
    return () if last is None else (last["folder"],)
