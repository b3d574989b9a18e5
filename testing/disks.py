"""File systems for single tests."""

import contextlib
import dataclasses
import pathlib
import subprocess
from collections.abc import Iterator

import pytest


@contextlib.contextmanager
def mounted(folder: pathlib.Path, options: str) -> Iterator[pathlib.Path]:
    """A file system of its own in memory at a folder."""
    folder.mkdir(parents=True)
    _mount("-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


@dataclasses.dataclass(frozen=True, slots=True)
class Disk:
    """An ext4 file system, with copies of it as power cuts at different moments would leave it."""

    folder: pathlib.Path
    """Where it is mounted."""
    image: pathlib.Path
    copies: pathlib.Path
    """The folder of the copies, named by their order."""

    @property
    def variables(self) -> dict[str, str]:
        """The environment of a process that runs `CUTS`."""
        return {"DISK_IMAGE": str(self.image), "DISK_COPIES": str(self.copies)}

    @contextlib.contextmanager
    def after_cut(self, copy: pathlib.Path) -> Iterator[pathlib.Path]:
        """Mount a copy, which recovers it as a restarted machine would."""
        folder = self.copies.parent / "recovered"
        folder.mkdir(exist_ok=True)
        _mount("-o", "loop", str(copy), str(folder))
        try:
            yield folder
        finally:
            subprocess.run(["umount", str(folder)], check=True)


CUTS = """
import os, sys

class Cuts:
    def __init__(self):
        self.busy, self.number, self.seen = False, 0, None

    def __call__(self, event, arguments):
        if self.busy or event not in ("open", "os.rename", "os.remove", "os.rmdir", "os.mkdir"):
            return
        if event == "open" and not (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR):
            return
        self.busy = True
        try:
            self.copy(os.environ["DISK_IMAGE"], os.environ["DISK_COPIES"])
        finally:
            self.busy = False

    def copy(self, image, copies):
        source = os.open(image, os.O_RDONLY)
        status = os.fstat(source)
        if status.st_mtime_ns != self.seen:  # what is not on the disk yet is not in the image
            self.seen, self.number = status.st_mtime_ns, self.number + 1
            path = f"{copies}/{self.number:04}"
            target = os.open(path, os.O_WRONLY | os.O_CREAT)
            os.ftruncate(target, status.st_size)
            begin = 0
            while begin < status.st_size:
                try:
                    begin = os.lseek(source, begin, os.SEEK_DATA)
                except OSError:
                    break
                end = os.lseek(source, begin, os.SEEK_HOLE)
                os.lseek(source, begin, os.SEEK_SET)
                os.lseek(target, begin, os.SEEK_SET)
                while begin < end:
                    begin += os.write(target, os.read(source, min(end - begin, 1 << 20)))
            os.close(target)
        os.close(source)

if "DISK_IMAGE" in os.environ:
    sys.addaudithook(Cuts())
"""
"""Copies the image before each step that Python takes in a file system, if the image changed."""


@contextlib.contextmanager
def cut(folder: pathlib.Path, megabytes: int = 64) -> Iterator[Disk]:
    """Mount an ext4 file system at a folder, with a folder of its copies next to it."""
    image, copies = folder.with_name("image"), folder.with_name("copies")
    folder.mkdir()
    copies.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes << 20)
    make = ["mkfs.ext4", "-q", "-F", str(image)]
    try:
        subprocess.run(make, capture_output=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("making a file system needs mkfs.ext4")
    _mount("-o", "loop", str(image), str(folder))
    try:
        yield Disk(folder, image, copies)
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def _mount(*options: str) -> None:
    if subprocess.run(["mount", *options], capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
