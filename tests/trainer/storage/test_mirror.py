"""Results that a bucket keeps, copied while others write and remove files."""

import os
import pathlib
from typing import Any

import pytest

from tfparallel_trainer.storage import address, bucket


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
