"""An image's place in the cache depends on what goes into it, and on nothing else."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from images import targets
from testing.image_cache import fingerprints


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of what the images are made of; whoever changes it restores it."""
    folder = tmp_path_factory.mktemp("sources")
    compiled = shutil.ignore_patterns("__pycache__")  # others write there meanwhile
    for name in ("operator", "trainer", "requirements"):
        shutil.copytree(targets.ROOT / name, folder / name, ignore=compiled)
    for name in ("Dockerfile", ".dockerignore", "VERSION"):
        shutil.copy(targets.ROOT / name, folder / name)
    return folder


@pytest.fixture
def copy(sources: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The copy, of which the images are made in this test."""
    monkeypatch.setattr(targets, "ROOT", sources)
    return sources


@contextlib.contextmanager
def _changed(file: Path) -> Iterator[None]:
    content = file.read_bytes()
    file.write_bytes(content + b"\n")
    try:
        yield
    finally:
        file.write_bytes(content)


def _fingerprints() -> list[str]:
    return [fingerprints.fingerprint(target, "base") for target in targets.TARGETS.values()]


@pytest.mark.parametrize(
    ("changed", "operator", "trainer"),
    [
        ("Dockerfile", True, True),
        ("requirements/build.txt", True, True),
        ("requirements/operator.txt", True, False),
        ("requirements/trainer.txt", False, True),
        ("requirements/trainer.in", False, False),
        ("operator/tfparallel_operator/main.py", True, False),
        ("trainer/tfparallel_trainer/errors.py", True, True),
    ],
)
def test_only_images_that_hold_a_file_depend_on_it(
    copy: Path, changed: str, operator: bool, trainer: bool
) -> None:
    before = _fingerprints()
    with _changed(copy / changed):
        after = _fingerprints()
    assert [old != new for old, new in zip(before, after, strict=True)] == [operator, trainer]


def test_every_source_that_the_dockerfile_copies_counts() -> None:
    text = (targets.ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        line.split()[1]
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line and "$" not in line
    }
    counted = {*fingerprints.COMMON_SOURCES, *targets.OPERATOR.sources, *targets.TRAINER.sources}
    assert copied
    assert copied <= counted
