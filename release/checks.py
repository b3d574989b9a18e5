"""What a commit has to have before it is released: a section of the changelog, and a tag."""

import re
import subprocess

import release
from testing import pages, paths

CHANGELOG = paths.ROOT / "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (.+)$", re.M)
_DATED = r"{version} \(\d{{4}}-\d{{2}}-\d{{2}}\)"


def notes(version: str, *, snapshot: bool) -> str:
    """Return the notes of a release of this commit.

    Raises:
        ReleaseError: the changelog or the commit is not that of a release.
    """
    text = section(CHANGELOG.read_text(encoding="utf-8"), version, snapshot=snapshot)
    if broken := pages.broken_links(CHANGELOG):
        raise release.ReleaseError(f"CHANGELOG.md links to {broken[0]}, which does not exist.")
    if not snapshot and _git("status", "--porcelain"):
        raise release.ReleaseError("files are not committed: commit them, or set SNAPSHOT=1.")
    if not snapshot and f"v{version}" not in _git("tag", "--points-at", "HEAD").split():
        raise release.ReleaseError(
            f"this commit has no tag v{version}: run `git tag --sign v{version}`, or set"
            " SNAPSHOT=1."
        )
    return text


def section(text: str, version: str, *, snapshot: bool) -> str:
    """Return what a changelog says of a version, and in a snapshot of what is not released.

    Raises:
        ReleaseError: the section is missing, or empty.
    """
    _, *parts = _HEADING.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    dated = re.compile(_DATED.format(version=re.escape(version)))
    title = UNRELEASED if snapshot else next(filter(dated.fullmatch, sections), "")
    if not sections.get(title, "").strip():
        raise release.ReleaseError(
            f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)' that says what changed:"
            f" rename '## {UNRELEASED}', or set SNAPSHOT=1."
        )
    return sections[title].strip() + "\n"


def _git(*arguments: str) -> str:
    command = ["git", "-C", str(paths.ROOT), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
