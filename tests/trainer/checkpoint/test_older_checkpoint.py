"""What older versions saved, kept under version control: today's trainer resumes, or says why not.

`checkpoints/COMMIT` is what the trainer of that commit saved at steps 4 and 6 of one job: `mlp.py`
in two processes, six steps, batches of 16. A change that cannot read it harms jobs at an upgrade.
"""

import pathlib
import shutil

from testing.trainer import runs as trainings
from testing.trainer import weights
from tfparallel_trainer.checkpoint import entries
from tfparallel_trainer.contract import exits, outputs
from tfparallel_trainer.storage import folder as folders

SAVED = pathlib.Path(__file__).parent / "checkpoints"
FORMAT_1, FORMAT_2 = SAVED / "a98b046", SAVED / "8e63e94"
BEGUN, STEPS = 4, 6


def resume(runs: trainings.Runs, version: pathlib.Path) -> trainings.Run:
    """Run a second attempt at the job on the checkpoint that a version saved first."""
    name = entries.name(BEGUN)
    shutil.copytree(version / name, runs.folder / "output" / outputs.CHECKPOINTS / name)
    checkpoint = {"claim": "c", "everySteps": STEPS}
    return runs.end(
        "mlp.py", processes=2, attempt=2, steps=STEPS, globalBatchSize=16, checkpoint=checkpoint
    )


def test_training_goes_on_from_an_older_versions_checkpoint(runs: trainings.Runs) -> None:
    run = resume(runs, FORMAT_2)
    assert run.codes == [exits.Exit.DONE] * 2, run.ended
    assert f"step {BEGUN}" in run.chief.output
    expected = weights.of_files(FORMAT_2 / entries.name(STEPS))
    assert set(run.checkpoint()) == set(expected)
    assert run.difference(weights.of_model(expected)) < weights.TOLERANCE


def test_a_checkpoint_of_another_format_is_refused_and_stays(runs: trainings.Runs) -> None:
    run = resume(runs, FORMAT_1)
    assert run.chief.code == exits.Exit.BAD_CONFIGURATION, run.ended
    assert "has format 1, and this version of the trainer reads formats 2 and 3" in run.chief.errors
    assert "give trainer.checkpoint another claim or uri" in run.chief.errors
    kept = entries.checkpoints(folders.Folder(run.output / outputs.CHECKPOINTS))
    assert [checkpoint.name for checkpoint in kept] == [entries.name(BEGUN)]
