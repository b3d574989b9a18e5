"""The files of a release, each built into a folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

import release
from testing import paths
from testing.cluster import binaries

DISTRIBUTIONS = ("trainer", "operator", "client")
CONTEXT = (
    *(".dockerignore", "Dockerfile", "VERSION"),
    *("images", "requirements", "operator", "trainer"),
)
"""What the images are built from, and the program that builds them: `python3 -m images`."""
INVENTORIES = {"operator": "operator", "trainer": "trainer", "trainer-cuda": "trainer"}
"""Requirements with pins, and the distribution that they are of."""
SUMS = "SHA256SUMS"
PIP = ("-m", "pip", "--disable-pip-version-check", "--quiet")


def chart(folder: Path) -> None:
    """Package the chart as `helm push` takes it."""
    helm = shutil.which("helm")
    if helm is None:
        binaries.ensure(("helm",))
        helm = str(binaries.path("helm"))
    _run([helm, "lint", "--strict", str(paths.CHART)])
    _run([helm, "package", str(paths.CHART), "--destination", str(folder)])


def image_archives(folder: Path, engine: str, base_image: str) -> None:
    """Write a docker-archive of each image.

    Raises:
        ReleaseError: the images cannot be built; why is on standard error.
    """
    options = (f"--archives={folder}", f"--engine={engine}", f"--base-image={base_image}")
    command = [sys.executable, "-m", "images", *options]
    if subprocess.run(command, cwd=paths.ROOT, stdout=subprocess.DEVNULL, check=False).returncode:
        raise release.ReleaseError("the images were not built. IMAGES=0 leaves them out.")


def wheels(folder: Path) -> None:
    """Build the wheels; the same commit gives the same files."""
    changed_at = _run(["git", "-C", str(paths.ROOT), "log", "-1", "--format=%ct"]).strip()
    flags = ["--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    sources = [str(paths.ROOT / name) for name in DISTRIBUTIONS]
    command = [sys.executable, *PIP, "wheel", *flags, *sources]
    _run(command, {"SOURCE_DATE_EPOCH": changed_at})


def build_context(folder: Path, version: str) -> None:
    """Write the committed files that the images are built from."""
    name = f"tfparallel-images-{version}"
    flags = [f"--prefix={name}/", f"--output={folder / name}.tar.gz"]
    _run(["git", "-C", str(paths.ROOT), "archive", *flags, "HEAD", *CONTEXT])


def inventories(folder: Path, version: str, tools: Path) -> None:
    """Write the software bill of materials (CycloneDX) of each image's Python packages.

    The program that writes them lives in `tools`, and checks them with the schema of CycloneDX.
    """
    if not tools.exists():
        _run([sys.executable, "-m", "venv", str(tools)])
    pinned = str(paths.ROOT / "requirements/release.txt")
    _run([str(tools / "bin/python"), *PIP, "install", "--require-hashes", "-r", pinned])
    for name, distribution in INVENTORIES.items():
        flags = ("--validate", "--output-reproducible", "--of=JSON", "--mc-type=application")
        project = f"--pyproject={paths.ROOT / distribution / 'pyproject.toml'}"
        output = f"--output-file={folder / f'tfparallel-{name}-{version}.cdx.json'}"
        requirements = str(paths.ROOT / f"requirements/{name}.txt")
        program = str(tools / "bin/cyclonedx-py")
        _run([program, "requirements", *flags, project, output, requirements])


def sums(folder: Path) -> None:
    """Write the checksums of all files, as `sha256sum --check` reads them."""
    lines = []
    for file in sorted(folder.iterdir()):
        with file.open("rb") as content:
            lines.append(f"{file_digest(content, 'sha256').hexdigest()}  {file.name}\n")
    (folder / SUMS).write_text("".join(lines), encoding="utf-8")


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=os.environ | dict(variables or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = " ".join((Path(command[0]).name, *command[1:3]))
        output = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise release.ReleaseError(f"{words} fails: {output[-1] if output else done.returncode}")
    return done.stdout
