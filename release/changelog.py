"""The section of CHANGELOG.md that a release is described by."""

import re
from pathlib import Path

import release

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "CHANGELOG.md"
UNRELEASED = "Unreleased"
_HEADING = re.compile(r"^## (.+)$", re.M)
_DATED = r"{version} \(\d{{4}}-\d{{2}}-\d{{2}}\)"
_LINK = re.compile(r"\]\(([^)#]*)(?:#([^)]*))?\)")


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


def broken_links(text: str) -> list[str]:
    """Return the links of the changelog that lead to no file, or to no heading of it."""
    links = _LINK.findall(text)
    return [
        f"{target}#{anchor}" if anchor else target
        for target, anchor in links
        if not target.startswith("https://") and not _holds(FILE.parent / (target or FILE), anchor)
    ]


def _holds(file: Path, anchor: str) -> bool:
    if not file.exists():
        return False
    return not anchor or anchor in anchors(file.read_text(encoding="utf-8"))


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as forges make them."""
    prose = re.sub(r"^```.*?^```$", "", page, flags=re.M | re.S)
    titles = re.findall(r"^#+ (.+)$", prose, re.M)
    plain = (re.sub(r"\[(.*?)\]\(.*?\)", r"\1", title) for title in titles)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in plain}
