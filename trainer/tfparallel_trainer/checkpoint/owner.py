"""Who may write to a folder of checkpoints: the process that took it last.

A writer that was cut off and replaced may still run, on a node that nobody reaches. The one that
replaced it has left its name, and who does not find the own name writes nothing more. With
parameter servers the chief is replaced within an attempt, so a name holds more than its number.
"""

import dataclasses
import json
import pathlib
import secrets

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files

FILE = "owner.json"


@dataclasses.dataclass(frozen=True, slots=True)
class Owner:
    """A process of an attempt at a job."""

    job: str
    """The job's uid: a job that was deleted and made again counts its attempts anew."""
    attempt: int
    process: str
    """Tells processes of one attempt apart."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job or 'without a uid'}"


def take(folder: pathlib.Path, job: str, attempt: int | None) -> Owner:
    """Take a folder for an attempt; None takes the number after the last.

    Raises:
        PreemptedError: a newer attempt at the same job has already taken it.
        OSError: the folder cannot be written to.
    """
    last = find(folder)
    same = last is not None and last.job == job
    before = last.attempt if last is not None and same else 0
    own = Owner(job, attempt or before + 1, secrets.token_hex(8))
    if own.attempt < before:
        raise _replaced(folder, own, last)
    content = json.dumps(dataclasses.asdict(own))
    files.write_text(folder / FILE, content)
    return own


def check(folder: pathlib.Path, own: Owner) -> None:
    """Make sure that a folder is still this process's.

    Raises:
        PreemptedError: another process has taken it since.
    """
    last = find(folder)
    if last != own:
        raise _replaced(folder, own, last)


def find(folder: pathlib.Path) -> Owner | None:
    """Return who took a folder last; None when nobody did."""
    try:
        content = json.loads((folder / FILE).read_text(encoding="utf-8"))
        process = str(content.get("process", ""))
        return Owner(str(content["job"]), int(content["attempt"]), process)
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def _replaced(folder: pathlib.Path, own: Owner, last: Owner | None) -> errors.PreemptedError:
    other = last or "nobody known"
    if last is not None and (last.job, last.attempt) == (own.job, own.attempt):
        other = "a newer process of the same"
    return errors.PreemptedError(
        f"This is {own}, and {other} has taken {folder}: nothing more is written."
    )
