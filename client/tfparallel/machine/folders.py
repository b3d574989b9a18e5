"""Folders of runs: runs/<job>/<time>."""

import datetime
import pathlib
from collections.abc import Iterator

RUNS = pathlib.Path("runs")
"""Below the working directory, unless the user names another folder."""


def new_folder(name: str, base: pathlib.Path = RUNS) -> pathlib.Path:
    """Return a folder for results that no run has used, named by the time."""
    moment = datetime.datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    number, folder = 2, base / name / moment
    while folder.exists():
        number, folder = number + 1, base / name / f"{moment}-{number}"
    return folder


def newest_first(folder: pathlib.Path) -> Iterator[pathlib.Path]:
    """Yield the folders of a job's runs."""
    yield from sorted((path for path in folder.iterdir() if path.is_dir()), key=_time, reverse=True)


def _time(folder: pathlib.Path) -> tuple[int, ...]:
    return tuple(int(part) for part in folder.name.split("-") if part.isdecimal())
