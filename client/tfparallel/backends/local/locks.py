"""File locks that show whether a process is alive, because the system releases them at its end."""

import fcntl
import pathlib
import typing


def acquire(file: typing.IO[typing.Any]) -> bool:
    """Lock an open file for as long as it is open. Return False if a process has locked it.

    A reader that calls `is_locked` shares the lock for a moment, which is no reason to give up.
    """
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
        else:
            return True


def is_locked(path: pathlib.Path) -> bool:
    """Whether a living process has a file locked."""
    try:
        file = path.open("rb")
    except FileNotFoundError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False
