"""Who may write to a directory of checkpoints: the process that took it last.

A writer that was cut off and replaced may still run, on a node that nobody reaches. The one that
replaced it has left its name, and who does not find the own name writes nothing more. With
parameter servers the chief is replaced within an attempt, so a name holds more than its number.
"""

import contextlib
import json
import secrets

import pydantic

from tfparallel_trainer import errors
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.storage import directory

FILE = outputs.OWNER


class Owner(pydantic.BaseModel, frozen=True):
    """A process of an attempt at a job."""

    job: str
    """The job's uid: a job that was deleted and created again counts its attempts from 1."""
    attempt: int
    process: str = ""
    """Tells processes of one attempt apart."""
    namespace: str = ""
    """Of the job; empty if nobody told it."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job or 'without a uid'}"


def take(folder: directory.Directory, job: str, attempt: int | None, namespace: str = "") -> Owner:
    """Take a folder for an attempt; None takes the number after the last.

    Raises:
        BadConfigurationError: it belongs to a job of another namespace.
        PreemptedError: a newer attempt at the same job has already taken it.
        OSError: the folder cannot be written to.
    """
    process = secrets.token_hex(8)
    while True:
        before = folder.snapshot(FILE)
        last = _parse(before.content)
        if last is not None and last.process == process:
            return last  # the answer to the write below was lost
        if last is not None and namespace and last.namespace not in ("", namespace):
            raise errors.BadConfigurationError(
                f"{folder} belongs to a job of namespace {last.namespace!r} ({last}), and this one "
                f"is of {namespace!r}. Give trainer.checkpoint.uri a prefix of your own."
            )
        number = last.attempt if last is not None and last.job == job else 0
        owner = Owner(job=job, attempt=attempt or number + 1, process=process, namespace=namespace)
        if owner.attempt < number:
            raise _replaced(folder, owner, last)
        if folder.replace(FILE, before, json.dumps(owner.model_dump()).encode()):
            return owner


def check(folder: directory.Directory, owner: Owner) -> None:
    """Raise PreemptedError if another process has taken a folder since."""
    last = find(folder)
    if last != owner:
        raise _replaced(folder, owner, last)


def find(folder: directory.Directory) -> Owner | None:
    """Return who took a folder last; None when nobody did, an OSError if the storage fails."""
    return _parse(folder.snapshot(FILE).content)


def _parse(content: bytes | None) -> Owner | None:
    with contextlib.suppress(pydantic.ValidationError):
        return Owner.model_validate_json(content or b"")
    return None


def _replaced(
    folder: directory.Directory, owner: Owner, last: Owner | None
) -> errors.PreemptedError:
    other = last or "nobody known"
    if last is not None and (last.job, last.attempt) == (owner.job, owner.attempt):
        other = "a newer process of the same"
    return errors.PreemptedError(
        f"This is {owner}, and {other} has taken {folder}: nothing more is written."
    )
