"""A release is described by a section of the changelog, and has a tag."""

import pathlib
import subprocess

import pytest

import release
from release import checks
from testing import paths

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
    assert checks.section(TEXT, "0.2.0", snapshot=False) == "### Fixed\n- Another line.\n"
    assert "A line" in checks.section(TEXT, "0.2.0", snapshot=True)


@pytest.mark.parametrize("version", ["0.1.0", "0.3.0", "0.2"])
def test_without_a_dated_section_there_is_no_release(version: str) -> None:
    sentence = f"no section '## {version} \\(YYYY-MM-DD\\)' that says what changed: rename"
    with pytest.raises(release.ReleaseError, match=sentence):
        checks.section(TEXT, version, snapshot=False)


def test_an_empty_section_is_none() -> None:
    with pytest.raises(release.ReleaseError, match=r"no section '## 0\.2\.0"):
        checks.section("## 0.2.0 (2026-12-01)\n\n", "0.2.0", snapshot=False)


@pytest.fixture
def repository(
    processes: None, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> pathlib.Path:
    """A repository with a changelog that is not committed."""
    monkeypatch.setattr(paths, "ROOT", tmp_path)
    monkeypatch.setattr(checks, "CHANGELOG", tmp_path / "CHANGELOG.md")
    checks.CHANGELOG.write_text("## 0.2.0 (2026-12-01)\n\n- A [line](page.md).\n")
    (tmp_path / "page.md").touch()
    git("init", "--quiet")
    return tmp_path


def git(*arguments: str) -> None:
    person = ("-c", "user.name=tests", "-c", "user.email=tests@example.org")
    subprocess.run(["git", "-C", str(paths.ROOT), *person, *arguments], check=True)


def refusal() -> str:
    with pytest.raises(release.ReleaseError) as refused:
        checks.notes("0.2.0", snapshot=False)
    return str(refused.value)


def test_a_release_is_a_commit_with_the_tag_of_its_version(repository: pathlib.Path) -> None:
    assert refusal() == "files are not committed: commit them, or set SNAPSHOT=1."
    git("add", ".")
    git("commit", "--quiet", "--message=Release")
    git("tag", "v0.1.0")
    assert refusal().startswith("this commit has no tag v0.2.0: run `git tag --sign v0.2.0`")
    git("tag", "v0.2.0")
    assert checks.notes("0.2.0", snapshot=False) == "- A [line](page.md).\n"


def test_a_snapshot_needs_neither_commit_nor_tag(repository: pathlib.Path) -> None:
    checks.CHANGELOG.write_text("## Unreleased\n\n- A line.\n")
    assert checks.notes("0.2.0", snapshot=True) == "- A line.\n"


def test_a_link_of_the_changelog_that_leads_nowhere_is_refused(repository: pathlib.Path) -> None:
    (repository / "page.md").unlink()
    assert refusal() == "CHANGELOG.md links to page.md, which does not exist."
