"""Reads the description of the image in a docker-archive."""

import json
import tarfile
from pathlib import Path
from typing import Any


def manifest(archive: Path) -> Any:
    """Return the entry of the one image: its tags, its configuration and its layers."""
    with tarfile.open(archive) as files:
        [entry] = json.load(member(files, "manifest.json"))
    return entry


def configuration(archive: Path) -> Any:
    """Return the configuration of the one image."""
    name = manifest(archive)["Config"]
    with tarfile.open(archive) as files:
        return json.load(member(files, name))


def member(files: tarfile.TarFile, name: str) -> Any:
    """Open a file of an archive."""
    file = files.extractfile(name)
    assert file is not None
    return file
