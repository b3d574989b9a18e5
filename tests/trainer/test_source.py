"""The init container that fetches a job's code and packages."""

import gzip
import hashlib
import io
import json
import pathlib
import subprocess
import sys
import tarfile
import tracemalloc
from collections.abc import Callable, Mapping
from importlib import metadata

import pytest

from testing import sources
from tfparallel_trainer import errors, process_settings, source
from tfparallel_trainer.contract import environment, exits, source_code
from tfparallel_trainer.reporting import console


def link(name: str, target: str) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname = tarfile.SYMTYPE, target
    return member


def extended() -> tarfile.TarInfo:
    """Return a header that speaks of the next one, and says nothing of it."""
    member = tarfile.TarInfo("headers")
    member.type = tarfile.XHDTYPE
    return member


def chunked(folder: pathlib.Path, content: bytes, size: int) -> str:
    """Write the chunks as the kubelet shows them, and return the digest of the whole."""
    folder.mkdir()
    (folder / "..data").mkdir()
    for number, start in enumerate(range(0, len(content), size)):
        (folder / f"{number:04}").write_bytes(content[start : start + size])
    return hashlib.sha256(content).hexdigest()


def fetch(folder: pathlib.Path, *arguments: str) -> tuple[exits.Exit, str]:
    """Run the module's main in this process; return its exit and what it leaves as a reason."""
    (folder / "source").mkdir(exist_ok=True)
    (folder / "packages").mkdir(exist_ok=True)
    env = {environment.FAILURE_FILE: str(folder / "failure")}
    code = source.main(["--source", str(folder / "source"), *arguments], env)
    failure = folder / "failure"
    return code, failure.read_text() if failure.exists() else ""


def unpack(folder: pathlib.Path, sha256: str) -> tuple[exits.Exit, str]:
    return fetch(folder, "--chunks", str(folder / "chunks"), "--sha256", sha256)


def test_an_archive_in_chunks_becomes_a_folder(tmp_path: pathlib.Path) -> None:
    files = {"model.py": "one", "./data/labels.txt": "two"}
    sha256 = chunked(tmp_path / "chunks", sources.archive(files), 10)
    for _ in range(2):  # a node that starts again runs it again
        assert unpack(tmp_path, sha256) == (exits.Exit.DONE, "")
        (tmp_path / "source/left-over").mkdir()
    assert (tmp_path / "source/model.py").read_text() == "one"
    assert (tmp_path / "source/data/labels.txt").read_text() == "two"
    assert unpack(tmp_path, sha256)[0] is exits.Exit.DONE
    assert not (tmp_path / "source/left-over").exists()


def test_chunks_of_another_archive_are_refused(tmp_path: pathlib.Path) -> None:
    sha256 = chunked(tmp_path / "chunks", sources.archive({"model.py": "one"}), 40)
    (tmp_path / "chunks/0001").unlink()
    code, reason = unpack(tmp_path, sha256)
    assert code is exits.Exit.BAD_CONFIGURATION
    assert f"sha256 is {sha256}, and the chunks have" in reason
    assert list((tmp_path / "source").iterdir()) == []


@pytest.mark.parametrize(
    "content",
    [
        sources.archive({"../outside": "x"}),
        sources.archive({"a/../../outside": "x"}),
        sources.archive({"/outside": "x"}),
        sources.archive({"model.py": "x"}, link("latest", "model.py")),
        sources.archive({}, link("out", "/etc/passwd")),
        sources.archive({"model.py": "x" * 5000})[:-40],
        sources.archive({"model.py": "x" * 5000})[:-60],
        gzip.compress(gzip.decompress(sources.archive({"model.py": "x" * 5000}))[:3000]),
        gzip.compress(b"".join(map(tarfile.TarInfo.tobuf, [extended()] * 2000))),
        b"no archive",
    ],
    ids=[
        *("parent", "parent of a folder", "root", "link", "link out", "cut", "cut in a file"),
        *("cut before it was packed", "headers alone", "no archive"),
    ],
)
def test_an_archive_that_is_broken_or_leads_elsewhere_is_refused(
    content: bytes, tmp_path: pathlib.Path
) -> None:
    code, reason = unpack(tmp_path, chunked(tmp_path / "chunks", content, 1000))
    assert code is exits.Exit.BAD_CONFIGURATION
    assert "trainer.source.archive cannot be unpacked" in reason
    assert not (tmp_path / "outside").exists()


def zeros(count: int, size: int) -> bytes:
    """Return an archive of files of zeros, which is small."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w:gz", compresslevel=1) as written:
        for number in range(count):
            member = tarfile.TarInfo(f"{number}")
            member.size = size
            written.addfile(member, Zeros(size))
    return content.getvalue()


class Zeros(io.RawIOBase):
    def __init__(self, size: int) -> None:
        super().__init__()
        self._left = size

    def read(self, size: int = -1) -> bytes:
        count = min(size, self._left)
        self._left -= count
        return bytes(count)


def headed(size: int) -> bytes:
    """Return an archive whose first header is of that many bytes, as tar allows."""
    header = tarfile.TarInfo("././@LongLink")
    header.type, header.size = tarfile.GNUTYPE_LONGNAME, size
    content = io.BytesIO()
    with gzip.GzipFile(fileobj=content, mode="wb", compresslevel=1) as packed:
        packed.write(header.tobuf(tarfile.GNU_FORMAT))
        packed.write(b"a" * size)
        packed.write(bytes(-size % tarfile.BLOCKSIZE))
        packed.write(tarfile.TarInfo("model.py").tobuf())
    return content.getvalue()


@pytest.mark.parametrize(
    ("build", "reason"),
    [
        (lambda: zeros(1, source_code.MAX_BYTES + 1), "holds more than 128 MB or 20,000 files"),
        (lambda: zeros(3, source_code.MAX_BYTES // 2), "holds more than 128 MB or 20,000 files"),
        (lambda: zeros(source_code.MAX_FILES + 1, 0), "holds more than 128 MB or 20,000 files"),
        (lambda: headed(3 << 20), "a header of 3145728 bytes, of 1048576"),
        (lambda: sources.archive({"a/" * 600 + "b": "x"}), "a path of 1201 characters, of 1024"),
    ],
    ids=["large file", "large files", "many files", "long header", "long path"],
)
def test_an_archive_beyond_a_limit_is_refused_in_little_memory(
    build: Callable[[], bytes], reason: str, tmp_path: pathlib.Path
) -> None:
    sha256 = chunked(tmp_path / "chunks", build(), 1_000_000)
    tracemalloc.start()
    try:
        code, sentence = unpack(tmp_path, sha256)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert code is exits.Exit.BAD_CONFIGURATION
    assert reason in sentence
    assert peak < 16 << 20
    written = sum(path.stat().st_size for path in (tmp_path / "source").rglob("*"))
    assert written <= source_code.MAX_BYTES + source_code.MAX_FILES


def test_an_archive_within_the_limits_is_written_in_blocks(tmp_path: pathlib.Path) -> None:
    sha256 = chunked(tmp_path / "chunks", zeros(2, 30_000_000), 1_000_000)
    tracemalloc.start()
    try:
        assert unpack(tmp_path, sha256) == (exits.Exit.DONE, "")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [(tmp_path / "source" / name).stat().st_size for name in "01"] == [30_000_000] * 2
    assert peak < 16 << 20


def test_a_full_disk_may_be_tried_again(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    sha256 = chunked(tmp_path / "chunks", sources.archive({"model.py": "one"}), 1000)
    monkeypatch.setattr(pathlib.Path, "chmod", full)  # no real disk is full on demand
    code, reason = unpack(tmp_path, sha256)
    assert code is exits.Exit.STORAGE_FAILED
    assert "No space left on device" in reason


def test_a_file_below_another_file_is_refused(tmp_path: pathlib.Path) -> None:
    content = sources.archive({"data": "x", "data/labels.txt": "y"})
    code, reason = unpack(tmp_path, chunked(tmp_path / "chunks", content, 1000))
    assert code is exits.Exit.BAD_CONFIGURATION
    assert "archive no file below the path of another one" in reason


def test_requirements_that_the_source_does_not_have_are_named(tmp_path: pathlib.Path) -> None:
    code, reason = install(tmp_path)
    assert code is exits.Exit.BAD_CONFIGURATION
    assert "trainer.source.requirements is 'requirements.txt'" in reason


REFUSED = """\
WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError('<X>')': /simple/
ERROR: Could not find a version that satisfies the requirement nothing (from versions: none)
ERROR: No matching distribution found for nothing
"""
UNKNOWN = REFUSED.partition("\n")[2]
FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n"
CONFLICT = """\
ERROR: Cannot install greedy because these package versions have conflicting dependencies.

The conflict is caused by:
    greedy 1.0 depends on numpy>=99
    The user requested (constraint) numpy==2.4.6

To fix this you could try to:
ERROR: ResolutionImpossible: for help visit https://pip.pypa.io/
"""


@pytest.mark.parametrize(
    ("message", "kind", "sentence"),
    [
        (REFUSED, errors.StorageError, "packages cannot be downloaded: Could not find a version"),
        (FULL, errors.StorageError, "the disk is full"),
        (UNKNOWN, errors.BadConfigurationError, "No matching distribution found for nothing"),
        (
            CONFLICT,
            errors.BadConfigurationError,
            "conflicting dependencies; greedy 1.0 depends on numpy>=99; The user requested"
            " (constraint) numpy==2.4.6. Correct them",
        ),
    ],
)
def test_the_output_of_pip_distinguishes_an_absent_server_from_a_wrong_requirement(
    message: str,
    kind: type[errors.TrainerError],
    sentence: str,
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    file = tmp_path / "requirements.txt"
    file.touch()
    monkeypatch.setattr(source, "_run", lambda *_: message)  # no index breaks on demand
    with pytest.raises(kind, match=r"requirements\.txt: ") as caught:
        source.install(file, tmp_path, console.Console("", quiet=True))
    assert sentence in str(caught.value)


def install(folder: pathlib.Path) -> tuple[exits.Exit, str]:
    arguments = ("--requirements", "requirements.txt", "--packages", str(folder / "packages"))
    return fetch(folder, *arguments)


@pytest.mark.usefixtures("processes")
def test_packages_are_installed_beside_those_that_are_there(tmp_path: pathlib.Path) -> None:
    wheels = tmp_path / "source/wheels"
    sources.write_wheel(wheels, "addon", "1.0", "pydantic")
    sources.write_wheel(wheels, "greedy", "1.0", "pydantic>=99")
    sources.write_wheel(wheels, "pydantic", "99.0")
    requirements = tmp_path / "source/requirements.txt"
    requirements.write_text("--no-index\n--find-links wheels\naddon\n")
    assert install(tmp_path) == (exits.Exit.DONE, "")
    names = {path.name for path in (tmp_path / "packages").iterdir()}
    assert {"addon.py", "addon-1.0.dist-info"} <= names
    assert not any(name.startswith("pydantic") for name in names)
    requirements.write_text("--no-index\n--find-links wheels\ngreedy\n")
    code, reason = install(tmp_path)
    assert code is exits.Exit.BAD_CONFIGURATION
    assert "greedy 1.0 depends on pydantic>=99" in reason
    assert f"(constraint) pydantic=={metadata.version('pydantic')}" in reason


@pytest.mark.usefixtures("processes")
def test_it_is_a_program_that_imports_no_tensorflow(tmp_path: pathlib.Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "tfparallel_trainer.source", "--help"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert "--chunks" in done.stdout
    assert "tensorflow" not in done.stderr


@pytest.mark.parametrize("sha256", ["0" * 64, "1" * 64])
def test_how_the_code_comes_makes_no_other_job_of_it(sha256: str, tmp_path: pathlib.Path) -> None:
    without = digest(tmp_path, {"configMap": None})
    archived = {"archive": {"configMaps": ["code"], "sha256": sha256}}
    assert digest(tmp_path, {**archived, "requirements": "requirements.txt"}) == without
    assert digest(tmp_path, {"configMap": {"name": "code"}}) != without


def digest(folder: pathlib.Path, code: Mapping[str, object]) -> str:
    """Return what tells the job with a source from others in its output folder."""
    trainer = {"epochs": 1, "source": code}
    content = {"name": "job", "strategy": "Mirrored", "trainer": trainer}
    (folder / "job.json").write_text(json.dumps(content))
    env = {
        environment.JOB_FILE: str(folder / "job.json"),
        environment.SOURCE_DIR: str(folder),
        environment.OUTPUT_DIR: str(folder),
    }
    return process_settings.read(env).digest
