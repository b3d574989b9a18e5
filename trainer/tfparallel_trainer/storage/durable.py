"""Files that outlast a power cut: content comes to the disk first, then the name that readers see.

Until then they are a draft next to their place, whose name no other process or container has.
"""

import contextlib
import os
import pathlib
import re
import secrets
import shutil
import stat
from collections.abc import Collection, Iterator
from typing import IO

_DRAFT = ".draft-"
_OLD_NS = 600 * 10**9


def draft(path: pathlib.Path) -> pathlib.Path:
    """Return a hidden name next to a path, which ends as it does and is new each time."""
    return path.with_name(f"{_DRAFT}{secrets.token_hex(8)}-{path.name}")


def publish(draft: pathlib.Path, path: pathlib.Path) -> None:
    """Bring a file or folder to the disk and give it its name, in place of what has it.

    What a rename cannot replace is renamed itself, and removed when the new one is in place.
    """
    sync(draft)
    aside = None
    if path.is_dir() or (draft.is_dir() and os.path.lexists(path)):
        aside = _renamed(path)
    try:
        draft.replace(path)
    except OSError:
        if aside is not None:
            aside.rename(path)
        raise
    sync_names(path.parent)
    if aside is not None:
        remove(aside)


def remove_drafts(path: pathlib.Path, older_than: pathlib.Path | None = None) -> None:
    """Remove drafts of a path that killed processes left, of any version of the trainer.

    Args:
        path: no other process may write it now, if `older_than` is not given.
        older_than: a new file; only drafts stay that are less than ten minutes older.
    """
    name = re.escape(path.name)
    leftover = re.compile(rf"\.(draft-[0-9a-f]{{16}}-{name}|\d+\.{name}|{name}\.\d+)")
    with contextlib.suppress(OSError):
        limit = None if older_than is None else older_than.stat().st_mtime_ns - _OLD_NS
        for sibling in path.parent.iterdir():
            if leftover.fullmatch(sibling.name) and (
                limit is None or sibling.lstat().st_mtime_ns < limit
            ):
                remove(sibling)


def remove(path: pathlib.Path) -> None:
    """Remove a file or a folder, as far as possible."""
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(path.lstat().st_mode):
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink()


def sync(path: pathlib.Path, but: Collection[str] = ()) -> None:
    """Bring a file, or a folder with all below it, to the disk.

    Args:
        path: links in it are not followed, and what is not a file or folder is left out.
        but: names in the folder that are left out.
    """
    mode = path.lstat().st_mode
    if stat.S_ISDIR(mode):
        for child in path.iterdir():
            if child.name not in but:
                with contextlib.suppress(FileNotFoundError, PermissionError):  # a person's, perhaps
                    sync(child)
        sync_names(path)
    elif stat.S_ISREG(mode):
        _sync(path)


def sync_names(folder: pathlib.Path) -> None:
    """Let the names in a folder outlast a power cut."""
    _sync(folder)


@contextlib.contextmanager
def opened(path: pathlib.Path) -> Iterator[IO[bytes]]:
    """Open a file whose content is on the disk when the body ends."""
    with path.open("wb") as file:
        yield file
        file.flush()
        os.fsync(file.fileno())


def _sync(path: pathlib.Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _renamed(path: pathlib.Path) -> pathlib.Path:
    """Give a file or a folder a draft's name."""
    aside = draft(path)
    path.rename(aside)
    return aside
