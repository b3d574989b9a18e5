"""Results that a bucket keeps, copied while others write and remove files."""

import os
import pathlib
from typing import Any

import pytest

from testing import buckets
from tfparallel_trainer import errors
from tfparallel_trainer.storage import address, bucket, connection, fetch


def test_files_that_go_while_they_are_copied_end_no_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's answer is no part of this: only what is sent is looked at."""
    for name in ("a.log", "b.log", "c.log"):
        (tmp_path / name).write_text(name)
    sent: dict[str, bytes] = {}

    def upload(_: bucket.Bucket, path: pathlib.Path, name: str) -> None:
        if name == "b.log":
            path.unlink()
        sent[name] = path.read_bytes()

    monkeypatch.setattr(bucket.Bucket, "upload", upload)
    mirror = bucket.Mirror(tmp_path, bucket.Bucket(address.Address.parse("s3://b/results")))
    mirror.upload()
    assert sent == {"a.log": b"a.log", "c.log": b"c.log"}


@pytest.mark.parametrize("name", [b"new\nline", b"tab\t", b"latin-1-\xff"])
def test_a_file_that_no_object_can_carry_stays_here(
    s3: buckets.Bucket, tmp_path: pathlib.Path, name: bytes
) -> None:
    (tmp_path / os.fsdecode(name)).write_text("odd")
    (tmp_path / "train.jsonl").write_text("lines")
    bucket.Mirror(tmp_path, s3.directory).upload()
    assert [path.name for path in s3.results.iterdir()] == ["train.jsonl"]


@pytest.mark.parametrize("name", ["a//b", "a/../b", "a/./b", "new\nline", "\udcff"])
def test_a_name_that_no_object_can_have_is_refused(s3: buckets.Bucket, name: str) -> None:
    with pytest.raises(connection.NameRefusedError, match="no object can be named"):
        s3.directory.read(name)
    with pytest.raises(errors.BadConfigurationError):
        fetch.fetch(f"s3://{s3.name}/{name}")


def test_an_object_that_cannot_be_listed_is_named_with_what_to_do(s3: buckets.Bucket) -> None:
    s3.put("runs/test/train.jsonl", b"lines")
    (s3.results / "new\nline").write_text("of another program")
    with pytest.raises(connection.RefusedError, match=r"new line.*remove it, or give it a name"):
        s3.directory.objects()


def test_folders_that_go_while_they_are_listed_end_no_run(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "events").write_text(name)
    listing, sent = os.scandir, list[str]()

    def scandir(path: Any) -> Any:
        for other in tmp_path.iterdir() if pathlib.Path(path).parent == tmp_path else ():
            if str(other) != str(path) and pathlib.Path(path).exists():
                (other / "events").unlink()
                other.rmdir()
        return listing(path)

    monkeypatch.setattr(os, "scandir", scandir)
    monkeypatch.setattr(bucket.Bucket, "upload", lambda _, __, name: sent.append(name))
    bucket.Mirror(tmp_path, bucket.Bucket(address.Address.parse("s3://b/results"))).upload()
    assert len(sent) == 1


def test_a_bucket_that_is_gone_is_said(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.log").write_text("a")

    def upload(*_: Any) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(bucket.Bucket, "upload", upload)
    with pytest.raises(FileNotFoundError):
        bucket.Mirror(tmp_path, bucket.Bucket(address.Address.parse("s3://b/results"))).upload()
