"""The names of checkpoints: which entries of a directory are checkpoints, and of which step.

Other files in the directory have other names, and nothing here touches them.
"""

import re

from tfparallel_trainer.storage import directory

_STEP = re.compile(r"step-(\d{10})(-\d{6,}-[0-9a-f]{16}(-\d+)?)?")
"""In a bucket the name ends with its writer: attempt, process and number of the save."""
_DRAFT = re.compile(rf"\.writing-.+|{_STEP.pattern}")


def checkpoints(folder: directory.Directory) -> list[directory.Directory]:
    """Return the checkpoints in a directory, the oldest first."""
    return [entry for entry in folder.entries() if is_named(entry)]


def drafts(folder: directory.Directory) -> list[directory.Directory]:
    """Return unfinished checkpoints, and what interrupted removals left."""
    return [draft for draft in folder.drafts() if _DRAFT.fullmatch(draft.name)]


def of_step(folder: directory.Directory, step: int) -> list[directory.Directory]:
    """Return the checkpoints of a step; in a bucket, each writer has its own."""
    return [entry for entry in checkpoints(folder) if step_of(entry) == step]


def name(step: int) -> str:
    """Return the name of the checkpoint of a step."""
    return f"step-{step:010}"


def is_named(folder: directory.Directory) -> bool:
    """Whether a directory has the name of a checkpoint."""
    return _STEP.fullmatch(folder.name) is not None


def step_of(checkpoint: directory.Directory) -> int:
    """Return the step that a checkpoint was saved after; a ValueError for another directory."""
    match = _STEP.fullmatch(checkpoint.name)
    if match is None:
        raise ValueError(f"{checkpoint} is not named as a checkpoint is")
    return int(match[1])
