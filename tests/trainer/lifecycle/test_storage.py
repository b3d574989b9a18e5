"""Disks that do not take what is written."""

import contextlib
import email.message
import errno
import os
import pathlib
import socket
import subprocess
import urllib.error
from collections.abc import Callable, Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import disks, waiting
from testing.trainer import checkpoints, launch, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import entries, export
from tfparallel_trainer.contract import environment, exits
from tfparallel_trainer.lifecycle import termination
from tfparallel_trainer.loop import exit_report
from tfparallel_trainer.reporting import console
from tfparallel_trainer.storage import folder as folders

pytestmark = pytest.mark.usefixtures("runs")


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_failed_write_leaves_the_checkpoint_before(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = checkpoints.opened(tmp_path)
    saved.save(checkpoints.state(1), checkpoints.at(1))
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(errors.StorageError, match=r"of step 2 cannot .* step-0000000001 is"):
            saved.save(checkpoints.state(2), checkpoints.at(2))
    assert not list(tmp_path.glob(".writing-*"))
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(1)
    saved.save(checkpoints.state(2), checkpoints.at(2))
    assert saved.restore(checkpoints.state(0)) == checkpoints.at(2)


@pytest.mark.parametrize(
    ("variables", "code"),
    [
        ({}, exits.Exit.STORAGE_FAILED),
        ({environment.FULL_DISK_IS_FINAL: "1"}, exits.Exit.BAD_CONFIGURATION),
    ],
)
def test_a_full_disk_of_one_machine_is_not_tried_again(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    code: exits.Exit,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    saved = checkpoints.opened(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(errors.StorageError) as caught:
            saved.save(checkpoints.state(1), checkpoints.at(1))
    out = console.Console("worker-0", str(tmp_path / "failure"))
    assert termination.exit_of(out, caught.value, "trainer") is code
    assert "No space left on device" in (tmp_path / "failure").read_text()
    other = errors.StorageError("the storage does not answer")
    assert termination.exit_of(out, other, "trainer") is exits.Exit.STORAGE_FAILED


def test_a_write_that_reads_back_differently_is_a_failed_one(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def damage(descriptor: int) -> None:
        with contextlib.suppress(OSError):  # a folder takes no bytes
            os.pwrite(descriptor, b"?", 0)

    saved = checkpoints.opened(tmp_path)
    monkeypatch.setattr(os, "fsync", damage)
    with pytest.raises(errors.StorageError, match=r"damaged at model/0/0 .* There is none before"):
        saved.save(checkpoints.state(1), checkpoints.at(1))


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
        (OSError(errno.EROFS, "Read-only file system"), exits.Exit.STORAGE_FAILED),
        (
            tf.errors.ResourceExhaustedError(None, None, "events; No space left on device"),
            exits.Exit.STORAGE_FAILED,
        ),
        (tf.errors.ResourceExhaustedError(None, None, "OOM"), exits.Exit.OUT_OF_MEMORY),
        (
            tf.errors.InternalError(None, None, "CUDA_ERROR_ECC_UNCORRECTABLE: uncorrectable ECC"),
            exits.Exit.DEVICE_FAILED,
        ),
        (
            tf.errors.InternalError(None, None, "NCCL: unhandled system error"),
            exits.Exit.DEVICE_FAILED,
        ),
        (
            tf.errors.UnknownError(None, None, "cuDNN failed to initialize"),
            exits.Exit.DEVICE_FAILED,
        ),
        (
            RuntimeError("CUDA runtime implicit initialization on GPU:0 failed. Status: unknown"),
            exits.Exit.DEVICE_FAILED,
        ),
        (
            tf.errors.InternalError(None, None, "CUDA_ERROR_OUT_OF_MEMORY: out of memory"),
            exits.Exit.OUT_OF_MEMORY,
        ),
        (
            tf.errors.InternalError(None, None, "CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image"),
            exits.Exit.INTERNAL_ERROR,
        ),
        (
            tf.errors.UnavailableError(None, None, "storage.example: 503"),
            exits.Exit.STORAGE_FAILED,
        ),
        (
            tf.errors.UnknownError(
                None, None, "a.tfrecord; Input/output error\n\t [[{{node Next}}]]"
            ),
            exits.Exit.STORAGE_FAILED,
        ),
    ],
)
def test_failures_of_files_and_devices_have_their_codes(error: Exception, code: exits.Exit) -> None:
    assert exit_report.translate(error, True, None).exit is code


def test_a_disk_of_one_of_several_processes_is_no_lost_peer() -> None:
    error = tf.errors.UnknownError(None, None, "/data/a.tfrecord; Input/output error")
    assert exit_report.translate(error, False, None).exit is exits.Exit.STORAGE_FAILED


def test_what_python_raises_within_a_step_is_the_users(tmp_path: pathlib.Path) -> None:
    step = tf.function(lambda: tf.numpy_function(failing(KeyError("label")), [], tf.float32))
    with pytest.raises(tf.errors.OpError) as raised:
        step()
    module = user.Module(tmp_path / "model.py", {})
    assert exit_report.translate(raised.value, True, module).exit is exits.Exit.USER_ERROR


def fetch(status: int) -> None:
    """Fail as `keras.utils.get_file` does."""
    try:
        raise urllib.error.HTTPError(
            "https://data.example", status, "", email.message.Message(), None
        )
    except urllib.error.HTTPError as error:
        raise Exception(f"URL fetch failure: {error.code}")  # noqa: B904


def failing(error: Exception) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "code"),
    [
        (failing(ConnectionResetError("reset by peer")), exits.Exit.STORAGE_FAILED),
        (failing(TimeoutError("timed out")), exits.Exit.STORAGE_FAILED),
        (failing(OSError(errno.EIO, "Input/output error")), exits.Exit.STORAGE_FAILED),
        (failing(OSError(errno.ESTALE, "Stale file handle")), exits.Exit.STORAGE_FAILED),
        (
            failing(socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")),
            exits.Exit.STORAGE_FAILED,
        ),
        (
            failing(socket.gaierror(socket.EAI_NONAME, "Name or service not known")),
            exits.Exit.USER_ERROR,
        ),
        (
            failing(tf.errors.AbortedError(None, None, "/data/a.tfrecord; Stale file handle")),
            exits.Exit.STORAGE_FAILED,
        ),
        (lambda: fetch(503), exits.Exit.STORAGE_FAILED),
        (lambda: fetch(429), exits.Exit.STORAGE_FAILED),
        (lambda: fetch(404), exits.Exit.USER_ERROR),
        (
            lambda: tf.numpy_function(
                failing(OSError(errno.EIO, "Input/output error")), [], "bool"
            ),
            exits.Exit.STORAGE_FAILED,
        ),
        (failing(FileNotFoundError(errno.ENOENT, "x.csv")), exits.Exit.USER_ERROR),
        (failing(ValueError("labels")), exits.Exit.USER_ERROR),
        (
            failing(tf.errors.InternalError(None, None, "CUDA_ERROR_ECC_UNCORRECTABLE")),
            exits.Exit.DEVICE_FAILED,
        ),
    ],
)
def test_faults_of_storage_in_users_code_may_pass(
    function: Callable[[], None], code: exits.Exit, tmp_path: pathlib.Path
) -> None:
    with (
        pytest.raises(errors.TrainerError, match="training_data raised") as raised,
        user.guard(tmp_path / "model.py", "training_data raised"),
    ):
        function()
    assert raised.value.exit is code


MODEL = """
import keras, numpy
def build_model():
    return keras.Sequential([keras.Input((100,)), keras.layers.Dense(500), keras.layers.Dense(1)])
def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-5), "mse")  # does not grow without end
def training_data():
    return numpy.ones((64, 100)), numpy.ones((64, 1))
"""


def test_an_output_directory_that_cannot_be_one_is_refused(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "output").write_text("a file")
    trainer: dict[str, object] = {"steps": 1, "checkpoint": {"claim": "c"}}
    environments = launch.environments(tmp_path, tmp_path, trainer, strategy="Mirrored")
    with runs.group(environments) as group:
        (ended,) = group.wait(90)
    assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
    assert "A file cannot be used" in ended.errors


def remount(folder: pathlib.Path, option: str) -> int:
    """Give a mounted file system an option; gives 0 when it has it."""
    command = ["mount", "-o", f"remount,{option}", str(folder)]
    return subprocess.run(command, capture_output=True, check=False).returncode


@pytest.fixture
def small_disk(tmp_path: pathlib.Path) -> Iterator[pathlib.Path]:
    """A file system with room for two checkpoints of the model, of 200 kB each."""
    with disks.mounted(tmp_path / "output", "size=550k") as folder:
        yield folder


def test_a_full_disk_is_reported_and_leaves_a_good_checkpoint(
    tmp_path: pathlib.Path, small_disk: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    trainer = {
        "steps": 9,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c", "everySteps": 1, "keep": 5},
    }
    environments = launch.environments(tmp_path, tmp_path, trainer, strategy="Mirrored")
    with runs.group(environments) as group:
        (ended,) = group.wait(90)
    assert ended.code == exits.Exit.STORAGE_FAILED, ended
    assert "The checkpoint of step 3 cannot be written" in ended.errors
    assert "step-0000000002 is the last good one" in ended.errors
    checkpoint_folder = small_disk / "checkpoints"
    for name in ("step-0000000001", "step-0000000002"):
        saved = weights.of_files(checkpoint_folder / name)
        assert all(np.isfinite(array).all() for array in saved.values())
    assert not (checkpoint_folder / "step-0000000003").exists()


def start_endless(folder: pathlib.Path, examples: int = 64, **trainer: object) -> launch.Group:
    """Start a run of endless steps, each of which takes a while."""
    model = MODEL.replace("ones((64", f"ones(({examples}")
    paced = model.replace("def training_data():", "def training_data():\n    time.sleep(0.2)")
    (folder / "model.py").write_text(paced.replace("import keras", "import time, keras"))
    spec = {"steps": 100_000, "globalBatchSize": 64, **trainer}
    environments = launch.environments(folder, folder, spec, strategy="Mirrored")
    return trainings.Runs(folder).group(environments)


def test_a_disk_that_becomes_read_only_is_reported_and_leaves_a_good_checkpoint(
    tmp_path: pathlib.Path,
) -> None:
    # Each epoch ends with a save: an epoch of many steps leaves moments without one.
    examples = 64 * 200
    checkpoint = {"claim": "c", "everySteps": 200, "keep": 2}
    with disks.mounted(tmp_path / "output/checkpoints", "size=2m") as folder:
        with start_endless(tmp_path, examples, checkpoint=checkpoint) as group:
            group.wait_for_output(0, "] step ")
            # The kernel refuses while a file is being written.
            waiting.until(
                lambda: entries.checkpoints(folders.Folder(folder)) and not remount(folder, "ro"),
                "a moment in which nothing is written",
                poll=0.01,
            )
            (ended,) = group.wait(90)
        kept = entries.checkpoints(folders.Folder(folder))
        assert ended.code == exits.Exit.STORAGE_FAILED, ended
        assert "cannot be written ([Errno 30] Read-only file system" in ended.errors
        assert f"{kept[-1].name} is the last good one" in ended.errors
        saved = weights.of_directory(kept[-1])
        assert all(np.isfinite(array).all() for array in saved.values())

        with start_endless(
            tmp_path, examples, checkpoint=checkpoint
        ) as group:  # as the operator tries again
            (ended,) = group.wait(90)
        assert ended.code == exits.Exit.BAD_CONFIGURATION, ended
        assert "The output directory cannot be written to: [Errno 30] Read-only" in ended.errors

        assert remount(folder, "rw") == 0
        with start_endless(tmp_path, examples, checkpoint=checkpoint) as group:
            group.wait_for_output(0, f"resuming after step {entries.step_of(kept[-1])} from")


def test_a_disk_that_others_fill_is_reported_when_a_record_is_written(
    tmp_path: pathlib.Path,
) -> None:
    with disks.mounted(tmp_path / "output", "size=1m") as folder, start_endless(tmp_path) as group:
        group.wait_for_output(0, "] step ")
        with contextlib.suppress(OSError), (folder / "others").open("wb", 0) as file:
            while True:
                file.write(bytes(4096))
        (ended,) = group.wait(90)
    assert ended.code == exits.Exit.STORAGE_FAILED, ended
    assert "No space left on device" in ended.errors
    assert "see the disk's space" in ended.errors
