"""The checkpoints of a job: newest first, the oldest removed, writers of old attempts kept out.

Only the chief writes, and only while the folder is its own (`owner`).
"""

import os
import pathlib
import re
import shutil
from collections.abc import Callable, Mapping
from typing import Any

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, keys, owner

_STEP = re.compile(r"step-(\d{10})")


class Store:
    """The folder that the checkpoints of a job live in."""

    def __init__(
        self,
        folder: pathlib.Path,
        keep: int,
        job: str,
        attempt: int | None,
        say: Callable[[str], None],
    ) -> None:
        """Take the folder for an attempt at the job of this uid; None takes the next number.

        Raises:
            PreemptedError: a newer attempt has already taken it.
            BadConfigurationError: the folder cannot be written to.
        """
        self._folder = folder
        self._keep = keep
        self._say = say
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._owner = owner.take(folder, job, attempt)
        except OSError as error:
            raise errors.BadConfigurationError(
                f"The output directory cannot be written to: {error}."
            ) from error

    @property
    def attempt(self) -> int:
        """Number of the attempt, from 1."""
        return self._owner.attempt

    def save(self, variables: Mapping[str, Any], at: files.Position) -> None:
        """Save all variables as the checkpoint of a step, and remove the oldest beyond `keep`.

        Raises:
            PreemptedError: another attempt has taken the folder.
            StorageError: the disk does not take it; the checkpoints before are as they were.
        """
        final = self._folder / f"step-{at.step:010}"
        if final.exists() and self._intact(final):
            return
        try:
            self._write(final, variables, at)
        except (OSError, files.DamagedError) as error:
            self._remove_drafts()  # they may be what fills the disk
            kept = checkpoints(self._folder)
            raise errors.StorageError(
                f"The checkpoint of step {at.step} cannot be written ({error}). "
                + (f"{kept[-1].name} is the last good one" if kept else "There is none before")
                + f"; see the space and the permissions of {self._folder}, which needs room for "
                f"{self._keep + 1} (trainer.checkpoint.keep + 1)."
            ) from error

    def _write(self, final: pathlib.Path, variables: Mapping[str, Any], at: files.Position) -> None:
        """Write beside the other checkpoints, give the name at the end, remove old ones then."""
        owner.check(self._folder, self._owner)
        self._remove_drafts()
        draft = self._folder / f".writing-{self.attempt:06}-{os.getpid()}"
        files.write(draft, variables, self.attempt, at)
        owner.check(self._folder, self._owner)
        shutil.rmtree(final, ignore_errors=True)
        draft.rename(final)
        files.sync_folder(self._folder)
        for folder in checkpoints(self._folder)[: -self._keep]:
            shutil.rmtree(folder, ignore_errors=True)

    def restore(self, variables: Mapping[str, Any]) -> files.Position | None:
        """Assign the newest whole checkpoint to the variables; None when there is none.

        Raises:
            BadConfigurationError: it is one of another model.
        """
        for folder in reversed(checkpoints(self._folder)):
            try:
                index = files.read_index(folder)
                check(folder, index, variables)
                for _ in files.read(folder, index):
                    pass
                for key, array in files.read(folder, index):
                    variables[key].assign(array)
            except files.DamagedError as error:
                self._say(f"skipping a checkpoint: {error}")
                continue
            return index.position
        return None

    def _intact(self, folder: pathlib.Path) -> bool:
        try:
            for _ in files.read(folder, files.read_index(folder)):
                pass
        except files.DamagedError:
            return False
        return True

    def _remove_drafts(self) -> None:
        """Remove what writers left that were cut off; who still writes one has been replaced."""
        for draft in self._folder.glob(".writing-*"):
            shutil.rmtree(draft, ignore_errors=True)


def checkpoints(folder: pathlib.Path) -> list[pathlib.Path]:
    """The checkpoints in a folder, the oldest first."""
    return sorted(path for path in folder.iterdir() if _STEP.fullmatch(path.name))


def step_of(checkpoint: pathlib.Path) -> int:
    """The step that a checkpoint was saved after."""
    return int(checkpoint.name.removeprefix("step-"))


def check(folder: pathlib.Path, index: files.Index, variables: Mapping[str, Any]) -> None:
    """Compare the keys and shapes of a checkpoint with those of the model.

    Raises:
        BadConfigurationError: it is one of another model.
    """

    def shown(key: str) -> str:
        label = index.arrays[key].label if key in index.arrays else variables[key].path
        return f"{key} ({label})"

    here = {key: tuple(variable.shape) for key, variable in variables.items()}
    there = {key: entry.shape for key, entry in index.arrays.items()}
    differing = keys.differences(there, here, shown)
    if differing:
        raise errors.BadConfigurationError(
            f"{folder} is a checkpoint of another model: {differing}. "
            "Give the changed model another claim or remove the checkpoints."
        )
