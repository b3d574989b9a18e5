"""Images by name: built when their inputs changed, found in the cache when not."""

import contextlib
import fcntl
import os
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from images import engines, programs, targets
from testing.cluster import console, folders, packages
from testing.image_cache import debian, fingerprints, store

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


def ensure(targets_to_build: Iterable[targets.Target]) -> list[Image]:
    """The images of these targets, built as far as the cache does not have them.

    Raises:
        ClusterError: they cannot be built; with what to do.
    """
    folder().mkdir(parents=True, exist_ok=True)
    try:
        with _one_builder():
            has_docker = engines.DOCKER.answers()
            if not has_docker:
                packages.ensure(store.COMMANDS)
            return [_ensure(target, has_docker=has_docker) for target in targets_to_build]
    except programs.ImageError as error:
        raise console.ClusterError(str(error)) from error


def _ensure(target: targets.Target, *, has_docker: bool) -> Image:
    key = fingerprints.fingerprint(target, "docker" if has_docker else debian.fingerprint())
    image = Image(target.reference, folder() / f"{target.name}-{targets.version()}-{key}.tar")
    if image.archive.exists():
        programs.say(f"{target.reference} is in the cache")
        os.utime(image.archive)
        return image
    programs.say(f"building {target.reference}")
    began = time.monotonic()
    log = folder() / f"{target.name}.log"
    partial = image.archive.with_suffix(".partial")
    partial.unlink(missing_ok=True)
    _build(target, partial, log, has_docker=has_docker)
    partial.rename(image.archive)
    seconds, size = time.monotonic() - began, image.archive.stat().st_size / 1e6
    programs.say(f"built {target.reference} in {seconds:.0f} s, {size:.0f} MB")
    _prune(target)
    return image


def _build(target: targets.Target, archive: Path, log: Path, *, has_docker: bool) -> None:
    engine = engines.DOCKER if has_docker else store.engine(folder())
    base = engines.BASE_IMAGE if has_docker else store.ensure_base(folder(), log)
    reference = target.full_reference("", "")
    engine.build(engines.Build(target, reference, base), log)
    engine.write(reference, archive, log)


def _prune(target: targets.Target) -> None:
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
