"""The files next to a job as an archive."""

import gzip
import io
import os
import pathlib
import tarfile

import pytest

from tfparallel import source_packing
from tfparallel_operator.api import load
from tfparallel_trainer.contract import source_code


def write(folder: pathlib.Path, *names: str) -> pathlib.Path:
    for name in names:
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"# {name}\n")
    return folder


def test_folders_go_along_and_what_is_ignored_stays(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "model.py", "layers/blocks.py", "data/big.bin", "runs/digits/1/status.json")
    write(tmp_path, ".git/config", "__pycache__/model.pyc", ".venv/bin/python", "layers/a.pyc")
    write(tmp_path, "src/runs/one.py", "digits-report.html")
    (tmp_path / source_packing.IGNORE_FILE).write_text("# comment\n/data\n")
    archive = source_packing.pack(tmp_path, "model.py")
    assert list(archive.files) == ["model.py", "layers/blocks.py", "src/runs/one.py"]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.data))) as packed:
        assert packed.getnames() == list(archive.files)
        content = packed.extractfile("layers/blocks.py")
        assert content is not None
        assert content.read() == b"# layers/blocks.py\n"


def test_a_folder_below_names_what_stays_too(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "model.py", "data/labels.txt", "data/big.bin", "data/raw/big.bin", "big.bin")
    (tmp_path / "data" / source_packing.IGNORE_FILE).write_text("*.bin\n")
    assert list(source_packing.pack(tmp_path, None).files) == [
        "big.bin",
        "model.py",
        "data/labels.txt",
    ]


def test_links_are_followed_once(tmp_path: pathlib.Path) -> None:
    """An archive holds no links: the trainer refuses those."""
    folder = write(tmp_path / "job", "model.py")
    (folder / "shared").symlink_to(write(tmp_path / "elsewhere", "common.py"))
    (folder / "again").symlink_to(folder)
    (folder / "link.py").symlink_to(folder / "model.py")
    archive = source_packing.pack(folder, "model.py")
    assert list(archive.files) == ["link.py", "model.py", "shared/common.py"]
    with tarfile.open(fileobj=io.BytesIO(gzip.decompress(archive.data))) as packed:
        assert all(member.isreg() for member in packed)


def test_equal_files_give_equal_archives(tmp_path: pathlib.Path) -> None:
    folder = write(tmp_path / "one", "model.py", "a/b.py")
    other = write(tmp_path / "other", "a/b.py", "model.py")
    os.utime(other / "model.py", (1, 1))
    first, second = (source_packing.pack(folder, "model.py") for folder in (folder, other))
    assert first.digest == second.digest
    assert first.config_maps("digits") == second.config_maps("digits")
    (other / "a/b.py").write_text("changed")
    assert source_packing.pack(other, "model.py").digest != first.digest


def test_a_large_archive_is_cut_into_config_maps(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "model.py", "requirements.txt")
    (tmp_path / "weights.bin").write_bytes(os.urandom(2 * source_packing.CHUNK_BYTES))
    archive = source_packing.pack(tmp_path, "model.py")
    config_maps = archive.config_maps("digits")
    assert [len(chunk) <= source_packing.CHUNK_BYTES for chunk in archive.chunks] == [True] * 3
    assert archive.source("digits") == {
        "archive": {
            "configMaps": [config_map["metadata"]["name"] for config_map in config_maps],
            "sha256": archive.digest,
        },
        "requirements": "requirements.txt",
    }


def test_a_source_of_two_gigabytes_is_refused_without_reading_it(tmp_path: pathlib.Path) -> None:
    write(tmp_path, "model.py")
    with (tmp_path / "images.npz").open("wb") as file:
        file.truncate(2 * 2**30)
    with pytest.raises(load.SpecError) as refusal:
        source_packing.pack(tmp_path, "model.py")
    assert "images.npz (2048.0 MiB)" in str(refusal.value)
    assert source_packing.IGNORE_FILE in str(refusal.value)


def test_what_is_too_large_when_packed_is_refused(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_packing, "CHUNK_BYTES", 100)
    write(tmp_path, "model.py")
    (tmp_path / "noise.bin").write_bytes(os.urandom(100 * source_packing.MAX_CHUNKS))
    with pytest.raises(load.SpecError, match=r"noise.bin .* Keep data in a claim or a bucket"):
        source_packing.pack(tmp_path, "model.py")


@pytest.mark.parametrize(("ignored", "reason"), [("", "does not exist"), ("*.py", "is ignored")])
def test_a_module_that_would_be_missing_is_named(
    tmp_path: pathlib.Path, ignored: str, reason: str
) -> None:
    if ignored:
        write(tmp_path, "train.py")
    (tmp_path / source_packing.IGNORE_FILE).write_text(ignored)
    with pytest.raises(load.SpecError, match=rf"spec.trainer.module: 'train.py' {reason}"):
        source_packing.pack(tmp_path, "train.py")


def test_a_file_that_cannot_be_read_is_named(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text("one")
    (tmp_path / "memory").symlink_to("/proc/self/mem")  # it cannot be read from its begin
    with pytest.raises(load.SpecError, match=r"cannot be sent with the job \(Input/output error\)"):
        source_packing.pack(tmp_path, "model.py")
    (tmp_path / source_packing.IGNORE_FILE).write_text("memory")
    assert source_packing.pack(tmp_path, "model.py").files == ["model.py"]


def test_a_file_that_changes_while_it_is_packed_is_whole(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is found with one size and read with another one."""
    (tmp_path / "model.py").write_text("one")
    (tmp_path / "train.log").write_text("one")
    reading = pathlib.Path.read_bytes

    def read_bytes(path: pathlib.Path) -> bytes:
        if path.name == "train.log":
            path.write_text("")
        return reading(path)

    monkeypatch.setattr(pathlib.Path, "read_bytes", read_bytes)
    archive = source_packing.pack(tmp_path, "model.py")
    packed = source_code.read_files(archive.data)
    contents = {file.path: b"".join(file.blocks) for file in packed}
    assert contents == {"model.py": b"one", "train.log": b""}
