"""A run whose machine loses its power at any moment: what says that it is there is whole."""

import json
import pathlib
import shutil
import zipfile

from testing import disks
from testing.trainer import runs as trainings
from testing.trainer import weights
from tfparallel_trainer.checkpoint import entries
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.storage import folder as folders

MODEL = (
    disks.CUTS
    + """
import keras, numpy

def build_model():
    return keras.Sequential([keras.Input((100,)), keras.layers.Dense(500), keras.layers.Dense(1)])

def compile_model(model):
    model.compile(keras.optimizers.SGD(1e-5), "mse")

def training_data():
    return numpy.ones((16, 100)), numpy.ones((16, 1))
"""
)


def test_each_moment_leaves_only_what_is_whole(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    with disks.cut(tmp_path / "output") as disk:
        runs.finish(
            "model.py",
            source=tmp_path,
            strategy="Mirrored",
            variables=disk.variables,
            steps=3,
            globalBatchSize=4,
            savedModel=True,
            checkpoint={"claim": "c", "everySteps": 1, "keep": 1},
        )
        shutil.copyfile(disk.image, disk.copies / "9999")
        moments = sorted(disk.copies.iterdir())
        assert len(moments) > 10
        begun = ended = 0
        for moment in moments:
            with disk.after_cut(moment) as output:
                begun += assert_checkpoints_whole(output, begun > 0)
                ended += assert_results_whole(output)
            moment.unlink()
    assert begun > 5
    assert ended > 0


def assert_checkpoints_whole(output: pathlib.Path, has_begun: bool) -> bool:
    """Read what is named as a checkpoint; returns whether there is one."""
    folder = folders.Folder(output / outputs.CHECKPOINTS)
    kept = entries.checkpoints(folder) if folder.path.exists() else []
    for checkpoint in kept:
        assert weights.of_directory(checkpoint)
    assert kept or not has_begun
    return bool(kept)


def assert_results_whole(output: pathlib.Path) -> bool:
    """Read what the summary says is there; returns whether there is a summary."""
    model, serving = output / outputs.MODEL, output / outputs.SAVED_MODEL
    if model.exists():
        assert zipfile.ZipFile(model).testzip() is None
    if serving.exists():
        assert all(path.stat().st_size for path in files(serving) if path.name != "fingerprint.pb")
        assert (serving / "saved_model.pb").is_file()
    if not (output / outputs.SUMMARY).exists():
        return False
    assert json.loads((output / outputs.SUMMARY).read_text())["done"]
    assert model.exists()
    assert serving.exists()
    lines = (output / outputs.TRAIN_LOG).read_text().splitlines()
    assert json.loads(lines[-1])["event"] == outputs.TrainEvent.DONE
    events = files(output / outputs.TENSORBOARD)
    assert events
    assert all(path.stat().st_size for path in events)
    return True


def files(folder: pathlib.Path) -> list[pathlib.Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
