"""Copies results to this machine: checked, and never half written."""

import contextlib
import hashlib
import pathlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence

from tfparallel import errors, source_packing
from tfparallel.results import files
from tfparallel_operator.api_server import errors as api_errors

_TRIES = 5
"""Of a file without any new byte, before the download fails."""

_DRAFTS = ".tfparallel-"

Progress = Callable[[int], None]
"""Called with the number of bytes that have come."""


async def fetch(
    store: files.Store,
    chosen: Sequence[files.ResultFile],
    folder: pathlib.Path,
    progress: Progress,
    say: Callable[[str], None],
) -> Sequence[files.ResultFile]:
    """Copy files below a folder; return those that came.

    All are written next to their targets first: until the last one is complete and checked, nothing
    that the folder holds changes. Entries that are not files, unreadable, or removed meanwhile are
    left out. No job takes a new folder along, should it lie next to the job's file.

    Raises:
        Failure: the connection breaks again and again, the disk is full, or a digest differs.
    """
    for file in chosen:
        check_path(file)
    with writing(folder):
        is_new = not folder.exists()
        folder.mkdir(parents=True, exist_ok=True)
        drafts = pathlib.Path(tempfile.mkdtemp(prefix=_DRAFTS, dir=folder))
        fetched = []
        try:
            for file in chosen:
                problem = file.problem or await _fetched(store, file, drafts / file.path, progress)
                if problem:
                    say(f"{file.path} is left out: {problem}")
                else:
                    fetched.append(file)
            for file in fetched:
                target = folder / file.path
                target.parent.mkdir(parents=True, exist_ok=True)
                (drafts / file.path).replace(target)
            if is_new and fetched:
                (folder / source_packing.IGNORE_FILE).write_text("*\n", encoding="utf-8")
        finally:
            shutil.rmtree(drafts, ignore_errors=True)
    return fetched


async def _fetched(
    store: files.Store, file: files.ResultFile, draft: pathlib.Path, progress: Progress
) -> str:
    """Copy a file; return why it did not come."""
    try:
        await _fetch(store, file, draft, progress)
    except files.LeftOutError as error:
        return str(error)
    return ""


async def _fetch(
    store: files.Store, file: files.ResultFile, draft: pathlib.Path, progress: Progress
) -> None:
    draft.parent.mkdir(parents=True, exist_ok=True)
    digest = hashlib.sha256()
    tries, offset = 0, 0
    with draft.open("wb") as out:
        while True:
            begin, cause = offset, "the connection ended early"
            try:
                async for chunk in store.read(file, offset):
                    out.write(chunk)
                    digest.update(chunk)
                    offset += len(chunk)
                    progress(len(chunk))
            except api_errors.Unavailable as error:
                cause = str(error)
            if offset >= file.size:
                break
            tries = 1 if offset > begin else tries + 1
            if tries >= _TRIES:
                raise errors.Failure(
                    f"{file.path} does not arrive: {offset} of {file.size} bytes came ({cause})."
                    " Run the command again"
                )
    expected = await store.compute_digest(file)
    if offset != file.size or expected not in (None, digest.hexdigest()):
        raise errors.Failure(
            f"{file.path} changed while it was copied: its size or digest differs. Run the command"
            " again"
        )


def check_path(file: files.ResultFile) -> None:
    """Refuse names that lead out of the folder: a pod may have written them.

    Raises:
        Failure: the name of the file is such a one.
    """
    path = pathlib.PurePosixPath(file.path)
    if path.is_absolute() or ".." in path.parts:
        raise errors.Failure(f"the results hold a file {file.path!r}, which is outside of them")


@contextlib.contextmanager
def writing(folder: pathlib.Path) -> Iterator[None]:
    """Say what the disk refuses.

    Raises:
        Failure: a file cannot be written below the folder.
    """
    try:
        yield
    except OSError as error:
        raise errors.Failure(
            f"{folder}: cannot be written: {error.strerror or error}. Choose another folder with"
            " --to, or free disk space"
        ) from error
