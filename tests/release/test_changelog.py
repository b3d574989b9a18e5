"""The section that a release is described by, and the links of the changelog."""

import pytest

import release
from release import changelog

TEXT = """# Changelog

## Unreleased

### Added
- A line ([page](docs/operate/install.md#the-images)).

## 0.2.0 (2026-12-01)

### Fixed
- Another line.

## 0.1.0

- Without a date.
"""


def test_a_release_is_described_by_its_section_and_a_snapshot_by_what_is_not_released() -> None:
    assert changelog.section(TEXT, "0.2.0", snapshot=False) == "### Fixed\n- Another line.\n"
    assert "A line" in changelog.section(TEXT, "0.2.0", snapshot=True)


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0", "0.2"])
def test_without_a_dated_section_there_is_no_release(version: str) -> None:
    sentence = f"no section '## {version} \\(YYYY-MM-DD\\)' that says what changed: rename"
    with pytest.raises(release.ReleaseError, match=sentence):
        changelog.section(TEXT, version, snapshot=False)


def test_an_empty_section_is_none() -> None:
    with pytest.raises(release.ReleaseError, match=r"no section '## 0\.2\.0"):
        changelog.section("## 0.2.0 (2026-12-01)\n\n", "0.2.0", snapshot=False)


def test_links_lead_to_files_and_headings() -> None:
    assert changelog.broken_links(TEXT) == []
    text = "[a](docs/nothing.md) [b](docs/index.md#nothing) [c](https://example.org) [d](LICENSE)"
    assert changelog.broken_links(text) == ["docs/nothing.md", "docs/index.md#nothing"]


def test_links_of_the_changelog_hold() -> None:
    assert changelog.broken_links(changelog.FILE.read_text(encoding="utf-8")) == []


def test_anchors_are_those_of_forges() -> None:
    page = "# A `thing`, and [more](x.md)\n```sh\n# no heading\n```\n## What's new?\n"
    assert changelog.anchors(page) == {"a-thing-and-more", "whats-new"}
