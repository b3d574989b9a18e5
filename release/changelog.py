"""The section of CHANGELOG.md that a release is described by."""

import re
from pathlib import Path

import release

FILE = Path(__file__).resolve().parents[1] / "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (.+)$", re.M)
_DATED = r"{version} \(\d{{4}}-\d{{2}}-\d{{2}}\)"


def section(text: str, version: str, *, snapshot: bool) -> str:
    """Return what changed in a version, and in a snapshot what is not released.

    Raises:
        ReleaseError: there is no such section, or it says nothing.
    """
    _, *parts = _HEADING.split(text)
    sections = dict(zip(parts[::2], parts[1::2], strict=True))
    if snapshot:
        title = UNRELEASED
    else:
        dated = re.compile(_DATED.format(version=re.escape(version)))
        title = next(filter(dated.fullmatch, sections), "")
    if not sections.get(title, "").strip():
        raise release.ReleaseError(
            f"CHANGELOG.md has no section '## {version} (YYYY-MM-DD)' that says what changed:"
            f" rename '## {UNRELEASED}', or set SNAPSHOT=1."
        )
    return sections[title].strip() + "\n"
