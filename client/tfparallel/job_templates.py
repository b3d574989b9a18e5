"""The jobs that `tfparallel init` writes, which functions of Python run in too."""

import importlib.metadata
import importlib.resources

NAME = "NAME"
"""Stands for the name of the job."""

_FOLDER = importlib.resources.files("tfparallel") / "templates"


def read(file: str, job: str = "") -> str:
    """Return the text of a template, with the name of a job and the version of its image."""
    text = (_FOLDER / file).read_text(encoding="utf-8")
    version = importlib.metadata.version("tfparallel")
    return text.replace(NAME, job).replace("VERSION", version) if job else text
