"""Decides who may write to a directory of checkpoints: the process that took it last.

A writer that was cut off and replaced may still run, on an unreachable node. Its successor has left
its own name in the directory, and a process that does not find its own name there writes nothing
more. With parameter servers, the chief is replaced within an attempt, so a name holds more than the
attempt's number.

A job takes its directory from its own earlier processes at once. Another job, such as one of this
namespace and name in a second cluster, takes it only if the owner's heartbeat stands still. Clocks
of machines differ, so a heartbeat is a number that grows, and not a time.
"""

import contextlib
import itertools
import json
import secrets
import threading
import time
from collections.abc import Callable, Iterator

import pydantic

from tfparallel_trainer import errors
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.lifecycle import farewells
from tfparallel_trainer.storage import directory

FILE = outputs.OWNER
HEARTBEAT = outputs.HEARTBEAT

INTERVAL_SECONDS = 10.0
"""Seconds between two heartbeats of an owner."""
SILENCE_SECONDS = 30.0
"""Seconds without a new heartbeat after which an owner counts as dead."""
PATIENCE_SECONDS = 60.0
"""Seconds for which another job waits for a live owner to end. By default, Kubernetes kills the
process of a deleted job after 30 s, and then its heartbeat stands still."""

_LOOKS = 30
"""Seconds between two looks at the heartbeat of another owner."""
_END_SECONDS = 3.0
"""Seconds that the last heartbeat may take at the end of a run, if the storage does not answer."""


class Owner(pydantic.BaseModel, frozen=True):
    """A process of an attempt at a job."""

    job: str
    """The job's uid: a job that was deleted and created again counts its attempts from 1."""
    attempt: int
    process: str = ""
    """Distinguishes processes of one attempt."""
    namespace: str = ""
    """Namespace of the job; empty if unknown."""

    def __str__(self) -> str:
        return f"attempt {self.attempt} of job {self.job or 'without a uid'}"


class Heartbeat(pydantic.BaseModel, frozen=True):
    """The last sign of life of an owner."""

    process: str
    """The owner's identifier."""
    number: int
    """Increases while the process lives."""
    ended: bool = False
    """Whether the process writes nothing more."""


def take(
    folder: directory.Directory,
    job: str,
    attempt: int | None,
    namespace: str = "",
    say: Callable[[str], None] = lambda _: None,
) -> Owner:
    """Take a folder for an attempt; None takes the number after the last.

    Raises:
        BadConfigurationError: it belongs to a job of another namespace, or to another live job.
        PreemptedError: a newer attempt at the same job has already taken it.
        OSError: the folder cannot be written to.
    """
    process = secrets.token_hex(8)
    ended: Owner | None = None
    while True:
        before = folder.snapshot(FILE)
        last = _owner(before.content)
        if last is not None and last.process == process:
            return last  # the response to the write below was lost
        if last is not None and namespace and last.namespace not in ("", namespace):
            raise errors.BadConfigurationError(
                f"{folder} belongs to a job of namespace {last.namespace!r} ({last}), and this one "
                f"is of {namespace!r}. Give trainer.checkpoint.uri a prefix of your own."
            )
        if last is not None and last.job != job and last != ended:
            _wait_for_end(folder, last, say)
            ended = last
            continue  # another process may have taken it meanwhile
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
    """Return the last owner of a folder. None: it has none. An OSError: the storage fails."""
    return _owner(folder.snapshot(FILE).content)


@contextlib.contextmanager
def living(folder: directory.Directory, owner: Owner) -> Iterator[None]:
    """Keep other jobs from taking a folder while the body runs, as long as it is the owner's."""
    over = threading.Event()

    def beat() -> None:
        for number in itertools.count():
            ended = over.is_set()
            with contextlib.suppress(OSError):  # the next heartbeat may succeed
                if find(folder) != owner:
                    return
                sign = Heartbeat(process=owner.process, number=number, ended=ended)
                folder.write(HEARTBEAT, sign.model_dump_json().encode())
            if ended:
                return
            over.wait(INTERVAL_SECONDS)

    def finish() -> None:
        over.set()
        thread.join(_END_SECONDS)

    thread = threading.Thread(target=beat, name="heartbeat", daemon=True)
    thread.start()
    with farewells.before_end(finish):
        try:
            yield
        finally:
            finish()


def _wait_for_end(folder: directory.Directory, owner: Owner, say: Callable[[str], None]) -> None:
    """Wait until an owner has ended or counts as dead; refuse to take its folder if it lives."""
    heartbeat = _unended_heartbeat(folder, owner)
    if heartbeat is None:
        return
    say(f"waiting up to {PATIENCE_SECONDS:.0f} s for the end of {owner}, which has {folder}")
    began = changed = time.monotonic()
    lives = False
    while (now := time.monotonic()) - changed < SILENCE_SECONDS:
        if lives and now - began >= PATIENCE_SECONDS:
            raise errors.BadConfigurationError(
                f"{folder} belongs to {owner}, which is still running, perhaps in another cluster. "
                "Delete that job, or give trainer.checkpoint a uri or claim of your own."
            )
        time.sleep(SILENCE_SECONDS / _LOOKS)
        last, heartbeat = heartbeat, _unended_heartbeat(folder, owner)
        if heartbeat is None:
            return
        if heartbeat != last:
            lives, changed = True, time.monotonic()


def _unended_heartbeat(folder: directory.Directory, owner: Owner) -> Heartbeat | None:
    """Return the last heartbeat; None if its owner has ended, or is of a version without."""
    with contextlib.suppress(pydantic.ValidationError):
        content = folder.snapshot(HEARTBEAT).content or b""
        heartbeat = Heartbeat.model_validate_json(content)
        is_over = heartbeat.ended and heartbeat.process == owner.process
        return None if is_over else heartbeat
    return None


def _owner(content: bytes | None) -> Owner | None:
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
