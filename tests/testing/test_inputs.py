"""An image's place in the cache depends on what goes into it, and on nothing else."""

import shutil
from pathlib import Path

import pytest

from testing.images import inputs


@pytest.fixture
def copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what the images are made of, which a test may change."""
    compiled = shutil.ignore_patterns("__pycache__")  # others write there meanwhile
    for name in ("operator", "trainer", "requirements"):
        shutil.copytree(inputs.ROOT / name, tmp_path / name, ignore=compiled)
    for name in ("Dockerfile", ".dockerignore"):
        shutil.copy(inputs.ROOT / name, tmp_path / name)
    monkeypatch.setattr(inputs, "ROOT", tmp_path)
    return tmp_path


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
    before = [target.fingerprint("base") for target in (inputs.OPERATOR, inputs.TRAINER)]
    with (copy / changed).open("a", encoding="utf-8") as file:
        file.write("\n")
    after = [target.fingerprint("base") for target in (inputs.OPERATOR, inputs.TRAINER)]
    assert [old != new for old, new in zip(before, after, strict=True)] == [operator, trainer]


def test_compiled_files_do_not_count(copy: Path) -> None:
    before = inputs.TRAINER.fingerprint("base")
    folder = copy / "trainer/tfparallel_trainer/__pycache__"
    folder.mkdir()
    (folder / "new.cpython-311.pyc").write_bytes(b"compiled")
    assert inputs.TRAINER.fingerprint("base") == before


def test_another_base_is_another_image() -> None:
    assert inputs.TRAINER.fingerprint("bookworm") != inputs.TRAINER.fingerprint("trixie")


def test_every_source_that_the_dockerfile_copies_counts() -> None:
    text = (inputs.ROOT / "Dockerfile").read_text(encoding="utf-8")
    copied = {
        line.split()[1]
        for line in text.splitlines()
        if line.startswith("COPY ") and "--from" not in line and "$" not in line
    }
    counted = {"requirements/build.txt", *inputs.OPERATOR.sources, *inputs.TRAINER.sources}
    assert copied
    assert copied <= counted


def test_names_are_those_of_the_distributions() -> None:
    assert inputs.OPERATOR.reference == f"tfparallel/operator:{inputs.OPERATOR.version}"
    assert inputs.TRAINER.version == inputs.OPERATOR.version
