"""Fingerprints of an image's inputs, as keys of the cache.

The hash covers the files that the Dockerfile copies for a target, so a change in the operator does
not rebuild the trainer's image.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from images import targets

COMMON_SOURCES = ("Dockerfile", ".dockerignore", "requirements/build.txt")
IGNORED_FOLDERS = {"__pycache__"}


def fingerprint(target: targets.Target, base: str) -> str:
    """A hash of the name, of the base and of the content of every source."""
    digest = hashlib.sha256(f"{target.reference}\0{base}".encode())
    for file in _files(target):
        content = hashlib.sha256(file.read_bytes()).hexdigest()
        digest.update(f"{file.relative_to(targets.ROOT)}\0{content}\n".encode())
    return digest.hexdigest()[:16]


def _files(target: targets.Target) -> Iterator[Path]:
    for source in (*COMMON_SOURCES, *target.sources):
        path = targets.ROOT / source
        paths = [path] if path.is_file() else path.rglob("*")
        for file in sorted(paths):
            if file.is_file() and not IGNORED_FOLDERS.intersection(file.parts):
                yield file
