"""The files of a release, each built into a folder."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from hashlib import file_digest
from pathlib import Path

import release
from images import engines, programs, targets
from testing.cluster import binaries

ROOT = targets.ROOT
CHART = ROOT / "charts/tfparallel-operator"
DISTRIBUTIONS = ("trainer", "operator", "client")
CONTEXT = (
    ".dockerignore",
    "Dockerfile",
    "VERSION",
    "images",
    "requirements",
    "operator",
    "trainer",
)
"""What the images are built from, and the program that builds them: `python3 -m images`."""
INVENTORIES = {
    "operator": "operator",
    "trainer": "trainer",
    "trainer-cuda": "trainer",
}
"""Requirements with pins, and the distribution that they are of."""
SUMS = "SHA256SUMS"


def chart(folder: Path) -> None:
    """Package the chart as `helm push` takes it."""
    helm = shutil.which("helm")
    if helm is None:
        binaries.ensure(("helm",))
        helm = str(binaries.path("helm"))
    _run([helm, "lint", "--strict", str(CHART)])
    _run([helm, "package", str(CHART), "--destination", str(folder)])


def wheels(folder: Path) -> None:
    """Build the wheels; the same commit gives the same files."""
    changed_at = _run(["git", "-C", str(ROOT), "log", "-1", "--format=%ct"]).strip()
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "wheel"]
    flags = ["--no-deps", "--no-build-isolation", f"--wheel-dir={folder}"]
    sources = [str(ROOT / name) for name in DISTRIBUTIONS]
    _run([*pip, *flags, *sources], {"SOURCE_DATE_EPOCH": changed_at})


def build_context(folder: Path, version: str) -> Path:
    """Write the committed files that the images are built from."""
    archive = folder / f"tfparallel-images-{version}.tar.gz"
    prefix = f"--prefix=tfparallel-images-{version}/"
    command = ["git", "-C", str(ROOT), "archive", prefix, f"--output={archive}", "HEAD"]
    _run([*command, *CONTEXT])
    return archive


def image_archives(folder: Path, base_image: str) -> str:
    """Write a docker-archive of each image; return why there is none, or nothing.

    Raises:
        ReleaseError: a program that builds images is here, and fails.
    """
    try:
        engines.find()
    except programs.ImageError as error:
        return str(error)
    command = [sys.executable, "-m", "images", f"--archives={folder}", f"--base-image={base_image}"]
    if subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode != 0:
        raise release.ReleaseError("the images were not built. IMAGES=0 leaves them out.")
    return ""


def inventories(folder: Path, version: str, tools: Path) -> None:
    """Write the software bill of materials (CycloneDX) of each image's packages."""
    program = _cyclonedx(tools)
    for name, distribution in INVENTORIES.items():
        flags = ("--output-reproducible", "--of=JSON", "--mc-type=application")
        project = f"--pyproject={ROOT / distribution / 'pyproject.toml'}"
        output = f"--output-file={folder / f'tfparallel-{name}-{version}.cdx.json'}"
        requirements = str(ROOT / f"requirements/{name}.txt")
        _run([str(program), "requirements", *flags, project, output, requirements])


def sums(folder: Path) -> None:
    """Write the checksums of all files, as `sha256sum --check` reads them."""
    (folder / SUMS).write_text("".join(_sums(folder)), encoding="utf-8")


def _sums(folder: Path) -> Iterator[str]:
    for file in sorted(folder.iterdir()):
        if file.name != SUMS:
            with file.open("rb") as content:
                yield f"{file_digest(content, 'sha256').hexdigest()}  {file.name}\n"


def _cyclonedx(tools: Path) -> Path:
    """Return the program that writes inventories, in an environment of its own."""
    program = tools / "bin/cyclonedx-py"
    if not program.exists():
        _run([sys.executable, "-m", "venv", str(tools)])
        pip = [str(tools / "bin/python"), "-m", "pip", "--disable-pip-version-check", "--quiet"]
        requirements = str(ROOT / "requirements/release.txt")
        _run([*pip, "install", "--require-hashes", "-r", requirements])
    return program


def _run(command: Sequence[str], variables: Mapping[str, str] | None = None) -> str:
    done = subprocess.run(
        command, env=os.environ | dict(variables or {}), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        words = " ".join((Path(command[0]).name, *command[1:3]))
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise release.ReleaseError(f"{words} fails: {said[-1] if said else done.returncode}")
    return done.stdout
