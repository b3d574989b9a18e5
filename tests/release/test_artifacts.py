"""The files of a release."""

import dataclasses
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping

import pytest

import release
from images import engines, targets
from release import __main__ as command
from release import artifacts
from testing import invocation
from testing.image_cache import archive, build, store

pytestmark = pytest.mark.timeout(3600)  # the images may have to be built

VERSION = targets.version()


@dataclasses.dataclass(frozen=True)
class Builder:
    """What builds images here: as options of both command lines, and as variables."""

    options: tuple[str, ...] = ()
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)


@pytest.fixture(scope="module")
def builder(processes: None, tmp_path_factory: pytest.TempPathFactory) -> Builder:
    """The builder of the images for tests, which has built them: its layers are at hand."""
    if engines.DOCKER.answers():
        return Builder()
    if os.geteuid() != 0:
        pytest.skip("The builder of the tests needs root or a Docker engine.")
    build.ensure(targets.TARGETS.values())
    folder = tmp_path_factory.mktemp("builder")
    base = store.ensure_base(build.folder(), folder / "base.log")
    variables = store.variables(build.folder(), folder / "storage.conf")
    return Builder(("--engine=buildah", f"--base-image={base}"), variables)


@pytest.fixture(scope="module")
def built(builder: Builder, tmp_path_factory: pytest.TempPathFactory) -> pathlib.Path:
    """A snapshot."""
    folder = tmp_path_factory.mktemp("release") / "files"
    with pytest.MonkeyPatch.context() as patch:
        for name, value in builder.variables.items():
            patch.setenv(name, value)
        assert command.main(["--snapshot", *builder.options, f"--folder={folder}"]) == 0
    return folder


@pytest.mark.long
def test_a_release_has_every_file_and_its_checksum(built: pathlib.Path) -> None:
    images = ("operator", "trainer", "trainer-cuda")
    assert {file.name for file in built.iterdir()} == {
        "NOTES.md",
        "SHA256SUMS",
        *(f"{target.repository}.tar" for target in targets.TARGETS.values()),
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
        with (built / name).open("rb") as content:
            assert hashlib.file_digest(content, "sha256").hexdigest() == digest


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


CHECK = """
import pathlib, sys
from cyclonedx import schema
from cyclonedx.validation import json
for file in sys.argv[1:]:
    validator = json.JsonStrictValidator(schema.SchemaVersion.V1_6)
    error = validator.validate_str(pathlib.Path(file).read_text(encoding="utf-8"))
    if error:
        sys.exit(f"{file}: {error}")
"""


@pytest.mark.long
def test_inventories_follow_the_schema_of_cyclonedx(
    built: pathlib.Path, tmp_path: pathlib.Path
) -> None:
    files = [str(file) for file in sorted(built.glob("*.cdx.json"))]
    wrong = tmp_path / "wrong.cdx.json"
    wrong.write_text(pathlib.Path(files[0]).read_text().replace('"version": 1', '"version": -1'))
    python = str(command.BUILD / "release-tools/bin/python")
    for checked, status in ((files, 0), ([str(wrong)], 1)):
        done = subprocess.run([python, "-c", CHECK, *checked], capture_output=True, check=False)
        assert done.returncode == status, done.stderr


@pytest.mark.long
def test_the_build_context_has_what_the_dockerfile_copies(built: pathlib.Path) -> None:
    with tarfile.open(built / f"tfparallel-images-{VERSION}.tar.gz") as context:
        names = context.getnames()
    below = f"tfparallel-images-{VERSION}"
    for target in targets.TARGETS.values():
        for source in ("Dockerfile", "VERSION", "images/__main__.py", *target.sources):
            assert f"{below}/{source}" in names


@pytest.mark.long
@pytest.mark.parametrize("name", targets.TARGETS)
def test_an_archive_holds_the_image_of_the_version(built: pathlib.Path, name: str) -> None:
    target = targets.TARGETS[name]
    file = built / f"{target.repository}.tar"
    assert archive.manifest(file)["RepoTags"] == [target.full_reference("", "")]
    labels = archive.configuration(file)["config"]["Labels"]
    assert labels["org.opencontainers.image.version"] == VERSION
    assert labels["org.opencontainers.image.title"] == target.repository


@pytest.mark.long
def test_the_build_context_builds_an_image_without_the_repository(
    built: pathlib.Path, builder: Builder, tmp_path: pathlib.Path
) -> None:
    with tarfile.open(built / f"tfparallel-images-{VERSION}.tar.gz") as context:
        context.extractall(tmp_path, filter="data")
    program = (sys.executable, "-m", "images", "operator", "--tag=context", *builder.options)
    done = invocation.execute(
        *program,
        folder=tmp_path / f"tfparallel-images-{VERSION}",
        env={**os.environ, **builder.variables},
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "docker.io/library/tfparallel-operator:context\n"


@pytest.mark.usefixtures("processes")
def test_without_a_program_that_builds_images_there_is_no_release(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", os.fspath(tmp_path))
    with pytest.raises(release.ReleaseError, match="were not built"):
        artifacts.image_archives(tmp_path, "", "")
    sentence = "error: Nothing here builds images: install docker, podman or buildah.\n"
    assert capfd.readouterr().err == sentence
