"""Data that lies in a bucket of a real server."""

import datetime
import os
import pathlib
import stat
import tempfile

import numpy as np
import obstore
import pytest
import tensorflow as tf

from testing import buckets
from testing.trainer import runs as trainings
from testing.trainer import weights
from tfparallel_trainer import errors
from tfparallel_trainer.storage import fetch


def test_files_are_fetched_once_and_again_when_they_change(
    s3: buckets.Bucket, tmp_path: pathlib.Path
) -> None:
    uri = s3.put("images/a/cat.png", b"cat")
    s3.put("images/b/dog.png", b"dog")
    s3.put("imagesets/other.png", b"other")
    root = fetch.fetch(f"s3://{s3.name}/images/", tmp_path)
    files_there = {path.relative_to(root).as_posix(): path for path in root.rglob("*.png")}
    assert {name: path.read_bytes() for name, path in files_there.items()} == {
        "a/cat.png": b"cat",
        "b/dog.png": b"dog",
    }
    local = fetch.fetch(uri, tmp_path)
    before = local.stat().st_ino
    assert fetch.fetch(uri, tmp_path).stat().st_ino == before
    s3.put("images/a/cat.png", b"lion")
    assert fetch.fetch(uri, tmp_path).read_bytes() == b"lion"


def test_a_copy_that_somebody_changed_is_fetched_again(
    s3: buckets.Bucket, tmp_path: pathlib.Path
) -> None:
    uri = s3.put("images/cat.png", b"cat")
    local = fetch.fetch(uri, tmp_path)
    for changed in (b"dog", b"", b"much longer"):
        local.write_bytes(changed)
        assert fetch.fetch(uri, tmp_path).read_bytes() == b"cat"
    (local.parent / ".draft-0123456789abcdef-cat.png").write_bytes(b"half")
    local.unlink()
    assert fetch.fetch(uri, tmp_path).read_bytes() == b"cat"
    assert [path.name for path in local.parent.iterdir()] == ["cat.png"]


def test_copies_lie_in_a_folder_of_this_user_alone(
    s3: buckets.Bucket, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.put("data.txt", b"data")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    before = os.umask(0)
    try:
        assert fetch.fetch(uri).read_bytes() == b"data"
    finally:
        os.umask(before)
    (folder,) = tmp_path.iterdir()
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    folder.chmod(0o777)  # as an older version may have made it
    assert fetch.fetch(uri).read_bytes() == b"data"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    moved = folder.rename(tmp_path / "moved")
    folder.symlink_to(moved)
    with pytest.raises(errors.BadConfigurationError, match="is no folder, so they cannot"):
        fetch.fetch(uri)


@pytest.mark.skipif(os.getuid() != 0, reason="giving a folder to another user needs root")
def test_a_folder_of_another_user_is_refused(
    s3: buckets.Bucket, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    uri = s3.put("data.txt", b"data")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"tfparallel-{os.getuid()}"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    with pytest.raises(errors.BadConfigurationError, match=r"belongs to user 65534 .* set TMPDIR"):
        fetch.fetch(uri)
    assert list(folder.iterdir()) == []


def test_what_stands_for_a_folder_is_no_file() -> None:
    time = datetime.datetime(2026, 11, 23, tzinfo=datetime.UTC)
    objects: list[obstore.ObjectMeta] = [
        {"path": path, "size": 0, "last_modified": time, "e_tag": None, "version": None}
        for path in ("images", "images/a", "images/a/cat.png", "images/ab")
    ]
    assert [meta["path"] for meta in fetch.files_of(objects)] == ["images/a/cat.png", "images/ab"]


@pytest.mark.parametrize(
    ("text", "error", "sentence"),
    [
        ("s3://{}/none", errors.BadConfigurationError, "No such object"),
        ("s3://{}/none/", errors.BadConfigurationError, "no object lies below"),
        ("s3://no-such-bucket/a", errors.BadConfigurationError, "'no-such-bucket' .* not exist"),
        ("http://server/a", errors.BadConfigurationError, "is not an address in a bucket"),
    ],
)
def test_what_cannot_be_fetched_is_reported_with_its_address(
    s3: buckets.Bucket, tmp_path: pathlib.Path, text: str, error: type[Exception], sentence: str
) -> None:
    uri = text.format(s3.name)
    with pytest.raises(error, match=sentence) as raised:
        fetch.fetch(uri, tmp_path)
    assert repr(uri) in str(raised.value)


RECORDS = """
import keras, tensorflow as tf
from tfparallel_trainer import inputs

keras.config.set_floatx("float64")

def build_model():
    return keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return inputs.Records([{records}], parse)

def parse(record):
    x = tf.io.decode_raw(record, tf.float64)
    return tf.ensure_shape(x, (3,)), tf.reduce_sum(x, keepdims=True)
"""


def test_records_in_a_bucket_train_as_files_do(runs: trainings.Runs, s3: buckets.Bucket) -> None:
    paths = [runs.folder / f"{name}.tfrecord" for name in "ab"]
    for number, path in enumerate(paths):
        with tf.io.TFRecordWriter(str(path)) as writer:
            for row in np.random.default_rng(number).normal(size=(10, 3)):
                writer.write(row.tobytes())
    addresses = [s3.put(path.name, path.read_bytes()) for path in paths]
    variables = {**s3.variables, "TMPDIR": str(runs.folder)}
    finals = []
    for name, places in (("files", map(str, paths)), ("bucket", addresses)):
        (runs.folder / name).mkdir()
        text = RECORDS.replace("{records}", ", ".join(repr(position) for position in places))
        (runs.folder / name / "model.py").write_text(text)
        run = runs.finish(
            module="model.py",
            source=runs.folder / name,
            folder=name,
            strategy="Mirrored",
            epochs=2,
            globalBatchSize=8,
            checkpoint={"claim": "c"},
            variables=variables,
        )
        finals.append(run.checkpoint())
    weights.assert_same_bits(*finals)
