"""Disks that do not take what is written."""

import errno
import os
import pathlib
import subprocess
from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer import launch
from tests.trainer.test_checkpoint import at, opened, state
from tfparallel_trainer import errors, export, failures
from tfparallel_trainer.checkpoint import files
from tfparallel_trainer.contract import exits


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_leaves_the_checkpoint_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = opened(tmp_path)
    saved.save(state(1), at(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(errors.StorageError, match=r"of step 2 cannot .* step-0000000001 is"):
            saved.save(state(2), at(2))
    assert not list(tmp_path.glob(".writing-*"))
    assert saved.restore(state(0)) == at(1)
    saved.save(state(2), at(2))
    assert saved.restore(state(0)) == at(2)


def test_a_write_that_reads_back_differently_is_a_failed_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = opened(tmp_path)
    monkeypatch.setattr(os, "fsync", lambda descriptor: os.pwrite(descriptor, b"?", 0))
    with pytest.raises(errors.StorageError, match=r"damaged at model/0/0 .* There is none before"):
        saved.save(state(1), at(1))


@pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning")  # within Keras
def test_a_model_that_cannot_be_written_leaves_the_one_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    path = tmp_path / "model.keras"
    export.save(model, path, tmp_path / "model.py")
    before = path.read_bytes()
    monkeypatch.setattr(keras.Model, "save", full)
    with pytest.raises(errors.StorageError, match=r"model.keras cannot be written"):
        export.save(model, path, tmp_path / "model.py")
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["model.keras"]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), exits.Exit.STORAGE_FAILED),
        (OSError(errno.EACCES, "Permission denied"), exits.Exit.BAD_CONFIGURATION),
        (
            tf.errors.ResourceExhaustedError(None, None, "events; No space left on device"),
            exits.Exit.STORAGE_FAILED,
        ),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), exits.Exit.OUT_OF_MEMORY),
    ],
)
def test_failures_of_files_have_their_codes(error: Exception, code: exits.Exit) -> None:
    assert failures.translate(error, True, None).exit is code


MODEL = """
import keras, numpy
def build_model():
    return keras.Sequential([keras.Input((100,)), keras.layers.Dense(500), keras.layers.Dense(1)])
def compile_model(model):
    model.compile("sgd", "mse")
def training_data():
    return numpy.ones((64, 100)), numpy.ones((64, 1))
"""


@pytest.mark.trainer
def test_an_output_directory_that_cannot_be_one_is_refused(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "output").write_text("a file")
    trainer: dict[str, object] = {"steps": 1, "checkpoint": {"claim": "c"}}
    environments = launch.environments(tmp_path, tmp_path, trainer, strategy="Mirrored")
    with launch.Group(tmp_path / "logs", environments) as group:
        (ended,) = group.wait(90)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert "A file cannot be used" in ended.errors


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system with room for two checkpoints of the model, of 200 kB each."""
    folder = tmp_path / "output"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=550k", "tmpfs", str(folder)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system needs root")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


@pytest.mark.trainer
def test_a_full_disk_is_told_and_leaves_a_good_checkpoint(
    tmp_path: pathlib.Path, small_disk: pathlib.Path
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    trainer = {
        "steps": 9,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 5},
    }
    environments = launch.environments(tmp_path, tmp_path, trainer, strategy="Mirrored")
    with launch.Group(tmp_path / "logs", environments) as group:
        (ended,) = group.wait(90)
    assert ended.code == exits.Exit.STORAGE_FAILED, ended
    assert "The checkpoint of step 3 cannot be written" in ended.errors
    assert "step-0000000002 is the last good one" in ended.errors
    checkpoints = small_disk / "checkpoints"
    for name in ("step-0000000001", "step-0000000002"):
        index = files.read_index(checkpoints / name)
        assert all(np.isfinite(array).all() for _, array in files.read(checkpoints / name, index))
    assert not (checkpoints / "step-0000000003").exists()
