"""buildah without a registry: its store is a folder, and debootstrap makes the base image.

Layers survive between runs, and nothing else on the machine is touched. Isolation `chroot` needs
neither cgroups nor a runtime.
"""

import dataclasses
import hashlib
import shutil
from pathlib import Path

from images import engines, programs
from testing.image_cache import debian

COMMANDS = ("buildah", "debootstrap")
BASE = "localhost/tfparallel-base"


def engine(folder: Path) -> engines.Engine:
    """Return buildah with its store in a folder."""
    stores = ("--root", str(folder / "storage"), "--runroot", str(folder / "run"))
    build = (*engines.BUILDAH.build_command, "--isolation", "chroot", "--pull-never")
    return dataclasses.replace(
        engines.BUILDAH, command=(*engines.BUILDAH.command, *stores), build_command=build
    )


def variables(folder: Path, configuration: Path) -> dict[str, str]:
    """Return the variables by which any buildah uses the store in a folder; writes their file."""
    graph = folder / "storage"
    driver = next(name for name in ("overlay", "vfs") if (graph / name).is_dir())
    configuration.write_text(
        f'[storage]\ndriver = "{driver}"\ngraphroot = "{graph}"\nrunroot = "{folder / "run"}"\n',
        encoding="utf-8",
    )
    return {"CONTAINERS_STORAGE_CONF": str(configuration), "BUILDAH_ISOLATION": "chroot"}


def ensure_base(folder: Path, log: Path) -> str:
    """Make the base image, if it is not there; return its name."""
    tag = hashlib.sha256(debian.fingerprint().encode()).hexdigest()[:16]
    name = f"{BASE}:{tag}"
    buildah = engine(folder)
    if buildah.has(name):
        return name
    programs.say("making the base with debootstrap")
    root = debian.make_root(folder, log)
    try:
        container = _read(buildah, "from", "scratch")
        _read(buildah, "add", "--quiet", container, str(root), "/")
        _read(buildah, "config", "--cmd", "python3", container)
        _read(buildah, "commit", "--quiet", container, name)
        _read(buildah, "rm", container)
    finally:
        shutil.rmtree(root)
    return name


def _read(buildah: engines.Engine, *arguments: str) -> str:
    answer = programs.read([*buildah.command, *arguments])
    if answer is None:
        raise programs.ImageError(f"buildah {' '.join(arguments[:2])} … failed")
    return answer
