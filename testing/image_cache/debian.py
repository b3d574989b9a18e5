"""A base image from the host's own Debian mirror, where no base image can be pulled."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from images import programs

PACKAGES = ("python3", "python3-venv", "ca-certificates")
SOURCES = Path("/etc/apt")
EMPTIED = ("var/cache/apt", "var/lib/apt/lists", "var/log", "usr/share/doc", "usr/share/man",
           "usr/share/locale", "usr/share/info")  # fmt: skip


@dataclass(frozen=True)
class AptArchive:
    """An archive that apt of this host installs from."""

    uri: str
    suite: str
    keyring: str | None = None


def suite() -> str:
    """The code name of the host's Debian."""
    release = Path("/etc/os-release").read_text(encoding="utf-8")
    match = re.search(r"^VERSION_CODENAME=(\S+)$", release, re.MULTILINE)
    if match is None or not re.search(r"^ID=debian$", release, re.MULTILINE):
        raise programs.ImageError(
            "Without a Docker engine the images are built on a base made by debootstrap, which "
            "needs Debian: start Docker, or run this on Debian."
        )
    return match.group(1)


def find_source(release_name: str, folder: Path = SOURCES) -> AptArchive:
    """The first source of the host that has this suite's component main."""
    for file in sorted([*folder.glob("sources.list"), *folder.glob("sources.list.d/*")]):
        text = file.read_text(encoding="utf-8")
        parse = _deb822 if file.suffix == ".sources" else _one_line
        for source in parse(text):
            if source.suite == release_name:
                return source
    raise programs.ImageError(f"apt of this machine has no source for the suite {release_name}.")


def fingerprint() -> str:
    """What distinguishes one base from another."""
    return f"debootstrap {suite()} {' '.join(PACKAGES)}"


def make_root(folder: Path, log: Path) -> Path:
    """Make a root file system below the folder and return its path."""
    source = find_source(suite())
    root = Path(tempfile.mkdtemp(prefix="base-", dir=folder))
    command = ["debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
    if source.keyring is not None:
        command.append(f"--keyring={source.keyring}")
    try:
        programs.run([*command, source.suite, str(root), source.uri], log, shown=_is_phase)
    except programs.ProgramError as error:
        shutil.rmtree(root)
        raise programs.ImageError(f"debootstrap failed: {error}. See {log}.") from error
    for name in EMPTIED:
        _empty(root / name)
    # The container engine brings these two, and the host's must not stay behind.
    for name in ("etc/resolv.conf", "etc/hostname", "etc/apt/sources.list"):
        (root / name).unlink(missing_ok=True)
    return root


def _is_phase(line: str) -> bool:
    return line.startswith(("I: Retrieving InRelease", "I: Unpacking the base", "I: Configuring py",
                            "I: Base system"))  # fmt: skip


def _empty(folder: Path) -> None:
    if not folder.is_dir():
        return
    for entry in os.scandir(folder):
        if entry.is_dir(follow_symlinks=False):
            shutil.rmtree(entry.path)
        else:
            os.unlink(entry.path)


def _deb822(text: str) -> Iterator[AptArchive]:
    for paragraph in re.split(r"\n\s*\n", text):
        pairs = re.findall(r"^([A-Za-z-]+):[ \t]*(.+)$", paragraph, re.MULTILINE)
        fields = {key.lower(): value.split() for key, value in pairs}
        if "deb" in fields.get("types", ()) and "main" in fields.get("components", ()):
            signed = next(iter(fields.get("signed-by", ())), None)
            yield from _sources(fields.get("uris", ())[:1], fields.get("suites", ()), signed)


def _one_line(text: str) -> Iterator[AptArchive]:
    pattern = re.compile(r"^deb\s+(?:\[(?P<options>[^\]]*)\]\s+)?(\S+)\s+(\S+)\s+.*\bmain\b")
    for line in text.splitlines():
        match = pattern.match(line)
        if match is not None:
            signed = re.search(r"signed-by=(\S+)", match.group("options") or "")
            keyring = signed.group(1) if signed else None
            yield from _sources([match.group(2)], [match.group(3)], keyring)


def _sources(
    uris: Iterable[str], suites: Iterable[str], keyring: str | None
) -> Iterator[AptArchive]:
    usable = keyring if keyring is not None and keyring.startswith("/") else None
    for uri in uris:
        for name in suites:
            yield AptArchive(uri, name, usable)
