"""Processes killed between the steps that follow a save or an export: a new run repairs it."""

import pathlib
import zipfile
from typing import Any

import pytest

from testing.trainer import runs as trainings
from testing.trainer import saves, weights
from tfparallel_trainer.checkpoint import entries
from tfparallel_trainer.contract import exits, outputs
from tfparallel_trainer.storage import folder as folders

STEPS = 6
JOB: dict[str, Any] = {
    "steps": STEPS,
    "globalBatchSize": 4,
    "strategy": "Mirrored",
    "checkpoint": {"claim": "c", "everySteps": 1, "keep": 2},
}


class Job:
    """A job that is started again and again."""

    def __init__(self, folder: pathlib.Path, runs: trainings.Runs) -> None:
        (folder / "model.py").write_text(saves.MODEL)
        self._source, self._runs = folder, runs
        self.output = folder / "killed" / "output"
        self.checkpoints = self.output / outputs.CHECKPOINTS

    def kill(self, event: str, ending: str, limit: int = 0) -> str:
        """Run it, and kill it before an event; returns its output."""
        cut = {"EVENT": event, "ENDING": ending, "LIMIT": str(limit)}
        run = self._runs.end("model.py", folder="killed", source=self._source, variables=cut, **JOB)
        assert run.chief.code == saves.Moment(event, limit=limit).code, run.ended
        return run.chief.output

    def finish(self, folder: str = "killed") -> trainings.Run:
        return self._runs.finish("model.py", folder=folder, source=self._source, **JOB)

    @property
    def kept(self) -> list[int]:
        """The steps of the checkpoints, all of them read."""
        kept = entries.checkpoints(folders.Folder(self.checkpoints))
        assert all(map(weights.of_directory, kept))
        return [entries.step_of(checkpoint) for checkpoint in kept]

    @property
    def drafts(self) -> list[str]:
        """What was not brought to its end, in the output folder."""
        return [path.name[-11:] for path in sorted(self.output.glob(".*"))]


@pytest.mark.timeout(900)
def test_each_step_may_be_the_last_one(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    job = Job(tmp_path, runs)
    job.kill("os.rename", f"/{entries.name(1)}")  # before old ones go
    assert job.kept == [1, 2, 3]

    output = job.kill("os.remove", saves.data())  # within the removal
    assert "resuming after step 3 " in output
    assert job.kept == [2, 3, 4]
    assert [path.name[-15:] for path in saves.drafts(job.checkpoints)] == [entries.name(1)]

    output = job.kill("open", f"-{outputs.MODEL}", limit=saves.BYTES // 4)  # within the export
    assert "resuming after step 4 " in output
    assert job.kept == [STEPS - 1, STEPS]
    assert not saves.drafts(job.checkpoints)
    assert job.drafts == [outputs.MODEL]
    assert not (job.output / outputs.MODEL).exists()

    output = job.kill("os.rename", f"-{outputs.SUMMARY}")  # between export and summary
    assert f"resuming after step {STEPS} " in output
    assert zipfile.ZipFile(job.output / outputs.MODEL).testzip() is None
    assert not (job.output / outputs.SUMMARY).exists()
    assert [outputs.SUMMARY.endswith(name) for name in job.drafts] == [True]

    killed, unbroken = job.finish(), job.finish("unbroken")
    weights.assert_same_bits(killed.checkpoint(STEPS), unbroken.checkpoint(STEPS))
    assert job.kept == [STEPS - 1, STEPS]

    whole = (job.output / outputs.MODEL).stat().st_size
    for damage in (b"", b"PK"):  # as a disk leaves it that an older version did not wait for
        (job.output / outputs.MODEL).write_bytes(damage)
        again = job.finish()
        assert "cannot be read: it is exported again from the newest" in again.chief.output
        assert (job.output / outputs.MODEL).stat().st_size == whole
    assert "already finished" in job.finish().chief.output


REPLACED = """
import json, os, pathlib, keras, numpy

def build_model():
    return keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return numpy.ones((4, 1)), numpy.ones((4, 1))

class Replaced(keras.callbacks.Callback):
    def on_train_end(self, logs=None):
        path = pathlib.Path(os.environ["TFPARALLEL_OUTPUT_DIR"]) / "checkpoints" / "owner.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "process": "another"}))

def callbacks():
    return [Replaced()]
"""


def test_a_chief_that_was_replaced_exports_nothing(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(REPLACED)
    run = runs.end("model.py", source=tmp_path, **JOB)
    assert run.chief.code == exits.Exit.PREEMPTED, run.ended
    assert "a newer process of the same has taken" in run.chief.errors
    assert not (run.output / outputs.MODEL).exists()
    assert not (run.output / outputs.SUMMARY).exists()
