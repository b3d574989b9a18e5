"""Images by name: built when their inputs changed, found in the cache when not."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.cluster import folders, packages
from testing.images import console, engines, inputs, pip_settings

KEPT_ARCHIVES = 2
"""Of each target: today's and the one before, so that going back and forth builds nothing."""


@dataclass(frozen=True)
class Image:
    """A built image: its name, and the docker-archive that holds it."""

    reference: str
    archive: Path


def folder() -> Path:
    """Where archives, logs and buildah's store live."""
    return folders.cache() / "images"


def ensure(targets: Iterable[inputs.Target]) -> list[Image]:
    """The images of these targets, built as far as the cache does not have them."""
    folder().mkdir(parents=True, exist_ok=True)
    with _one_builder():
        engine = _engine()
        return [_ensure(engine, target) for target in targets]


def _engine() -> engines.Engine:
    if engines.docker_answers():
        return engines.Docker()
    packages.ensure(engines.BUILDAH_COMMANDS)
    return engines.Buildah(folder())


def _ensure(engine: engines.Engine, target: inputs.Target) -> Image:
    name = f"{target.name}-{target.version}-{target.fingerprint(engine.base())}"
    image = Image(target.reference, folder() / f"{name}.tar")
    if image.archive.exists():
        console.say(f"{target.reference} is in the cache")
        os.utime(image.archive)
        return image
    console.say(f"building {target.reference}")
    began = time.monotonic()
    log = folder() / f"{target.name}.log"
    log.unlink(missing_ok=True)
    partial = image.archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    with pip_settings.secrets(folder()) as secrets:
        engine.build(target, secrets, partial, log)
    partial.rename(image.archive)
    took, size = time.monotonic() - began, image.archive.stat().st_size / 1e6
    console.say(f"built {target.reference} in {took:.0f} s, {size:.0f} MB")
    _prune(target)
    return image


def _prune(target: inputs.Target) -> None:
    archives = sorted(folder().glob(f"{target.name}-*.tar"), key=lambda file: file.stat().st_mtime)
    for old in archives[:-KEPT_ARCHIVES]:
        old.unlink()


@contextlib.contextmanager
def _one_builder() -> Iterator[None]:
    """Two runs that start together must not build the same thing twice."""
    descriptor = os.open(folder(), os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
