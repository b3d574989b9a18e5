"""The section that a release is described by."""

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
