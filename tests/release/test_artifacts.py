"""The files of a release."""

import hashlib
import json
import os
import pathlib
import re
import tarfile
import zipfile

import pytest

from images import targets
from release import __main__ as command
from release import artifacts

pytestmark = pytest.mark.timeout(1800)

VERSION = targets.OPERATOR.version


@pytest.fixture(scope="module")
def built(processes: None, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A snapshot without images."""
    folder = tmp_path_factory.mktemp("release") / "files"
    assert command.main(["--snapshot", "--no-images", f"--folder={folder}"]) == 0
    return folder


@pytest.mark.long
def test_a_release_has_every_file_and_its_checksum(built: pathlib.Path) -> None:
    images = ("operator", "trainer", "trainer-cuda")
    assert {file.name for file in built.iterdir()} == {
        "NOTES.md",
        "SHA256SUMS",
        f"tfparallel-images-{VERSION}.tar.gz",
        f"tfparallel-operator-{VERSION}.tgz",
        *(f"tfparallel-{name}-{VERSION}.cdx.json" for name in images),
        *(
            f"{name}-{VERSION}-py3-none-any.whl"
            for name in ("tfparallel", "tfparallel_operator", "tfparallel_trainer")
        ),
    }
    lines = (built / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    sums = {name: digest for digest, name in (line.split("  ") for line in lines)}
    assert sums.keys() == {file.name for file in built.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((built / name).read_bytes()).hexdigest() == digest


@pytest.mark.long
def test_wheels_of_a_release_need_each_other_at_its_version(built: pathlib.Path) -> None:
    [wheel] = built.glob("tfparallel-*.whl")
    with zipfile.ZipFile(wheel) as files:
        metadata = files.read(f"tfparallel-{VERSION}.dist-info/METADATA").decode()
    for name in ("operator", "trainer"):
        assert f"Requires-Dist: tfparallel-{name}=={VERSION}\n" in metadata


@pytest.mark.long
@pytest.mark.parametrize("name", ["operator", "trainer", "trainer-cuda"])
def test_an_inventory_lists_every_pinned_package(built: pathlib.Path, name: str) -> None:
    text = (targets.ROOT / f"requirements/{name}.txt").read_text(encoding="utf-8")
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", text, re.M))
    inventory = json.loads((built / f"tfparallel-{name}-{VERSION}.cdx.json").read_text())
    assert inventory["bomFormat"] == "CycloneDX"
    listed = {component["name"]: component["version"] for component in inventory["components"]}
    assert listed == pinned
    assert inventory["metadata"]["component"]["version"] == VERSION


@pytest.mark.long
def test_the_build_context_has_what_the_dockerfile_copies(built: pathlib.Path) -> None:
    with tarfile.open(built / f"tfparallel-images-{VERSION}.tar.gz") as archive:
        names = archive.getnames()
    below = f"tfparallel-images-{VERSION}"
    for target in targets.TARGETS.values():
        for source in ("Dockerfile", "VERSION", "images/__main__.py", *target.sources):
            assert f"{below}/{source}" in names


@pytest.mark.usefixtures("processes")
def test_without_a_program_that_builds_images_one_sentence_says_so(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    sentence = artifacts.image_archives(tmp_path, "")
    assert sentence == "Nothing here builds images: install docker, podman or buildah."
