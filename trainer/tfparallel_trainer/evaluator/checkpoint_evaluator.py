"""Evaluates each newest checkpoint until the run is done and its last checkpoint is evaluated.

It reads checkpoints and writes files of its own; training knows of it only that it need not
evaluate. A checkpoint may be removed while it is read, because training keeps only the newest.
"""

import contextlib
import time
from collections.abc import Iterator

from tfparallel_trainer import errors, user
from tfparallel_trainer.checkpoint import entries, files, keys, reading, shard
from tfparallel_trainer.comms import devices, shape
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.data import batch_division, data_functions
from tfparallel_trainer.engines import setup
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import replica
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.reporting import console, records, results
from tfparallel_trainer.storage import directory

_LOOK_EVERY_SECONDS = 1.0


def until_done(context: setup.RunContext) -> None:
    """Evaluate until training has ended. An error here does not affect training."""
    settings = context.settings
    devices.prepare(1, alone=True)
    evaluator_status = results.Status(settings)
    written = records.RunRecords(settings.output_dir, settings.results, outputs.EVALUATION_LOG)
    with contextlib.closing(written):
        evaluator = CheckpointEvaluator(context, evaluator_status, written)
        context.out.say(f"evaluates the checkpoints of {settings.checkpoints}")
        while evaluator.look():
            with context.watch.waiting("the wait for a checkpoint"):
                time.sleep(_LOOK_EVERY_SECONDS)
    context.out.say(f"training is done, and step {evaluator.evaluated} was evaluated last")


def check(settings: Settings, module: user.Module) -> None:
    """Refuse (UserCodeError) a job that has an evaluator, but no data to evaluate on."""
    if settings.job.evaluator and not module.has("evaluation_data"):
        raise errors.UserCodeError(
            "evaluation_data is missing, and the job has an evaluator: define it, or remove the "
            "evaluator.",
            function="evaluation_data",
        )


class CheckpointEvaluator:
    """A model whose weights are those of one checkpoint after the other."""

    def __init__(
        self, context: setup.RunContext, status: results.Status, written: records.RunRecords
    ) -> None:
        """Build the model on this process's first device, from the examples to evaluate on."""
        self._settings = settings = context.settings
        self._out = context.out
        self._status = status
        self._records = written
        self._watch = context.watch
        self._folder = settings.checkpoints
        self._skipped: set[tuple[str, str]] = set()
        cut = batch_division.BatchSharding(
            settings.job.trainer.global_batch_size, ranks=1, local_ranks=(0,)
        )
        self._examples = data_functions.evaluation(
            context.module, setup.data_request(settings, cut)
        )
        sample, seed = self._examples.sample(), settings.job.trainer.seed
        model_replica = replica.build(context.module, shape.MeshShape(), 0, "", seed, sample)
        self._variables = keys.for_training(model_replica.model, model_replica.optimizer)
        self._wholes = shard.undivided(self._variables).wholes
        self._evaluation = mesh_steps.MeshEvaluator(
            context.module, [model_replica], self._examples.spec
        )
        self.evaluated = 0
        """The step of the checkpoint that was evaluated last."""

    def look(self) -> bool:
        """Evaluate the newest checkpoint if it is new; gives whether there may be more."""
        end = results.end_of(self._settings)  # before looking: the newest is then the last
        self._watch.moved("a look for checkpoints")
        for folder in reversed(self._new()):
            at = self._load(folder)
            if at is not None:
                self._evaluate(at)
                return True
        return end is None

    def _new(self) -> list[directory.Directory]:
        """Checkpoints that are newer than the last one, the oldest first."""
        try:
            checkpoints = entries.checkpoints(self._folder)
        except OSError:  # training has not begun, or the disk does not answer for a moment
            return []
        return [folder for folder in checkpoints if entries.step_of(folder) > self.evaluated]

    def _load(self, folder: directory.Directory) -> files.Position | None:
        """Load a checkpoint's weights into the model; None: it is incomplete or gone."""
        version = folder.version()
        if version is None or (folder.name, version) in self._skipped:
            return None
        try:
            index = files.read_index(folder)
            reading.check(folder, index, self._wholes)
            for key, array in files.read(folder, index):
                self._variables[key].assign(array)
                self._moved(f"reading {key} of {folder.name}")
        except files.DamagedError as error:
            self._skipped.add((folder.name, version))
            if folder.version() is not None:  # one that training has removed is not a loss
                self._out.say(f"skipping a checkpoint: {error}")
            return None
        return index.position

    def _evaluate(self, at: files.Position) -> None:
        began = time.monotonic()
        with self._watch.evaluation():
            values = self._evaluation.run(self._watched(self._examples.epoch(0, 0), at.step))
        seconds = round(time.monotonic() - began, 3)
        self._records.metrics("evaluation", at.step, values, epoch=at.epoch, seconds=seconds)
        self._records.flush()
        self._status.publish(at.step, values)
        self._out.say(f"step {at.step}  evaluation  {console.metrics(values)}  in {seconds:.1f} s")
        self.evaluated = at.step

    def _watched(
        self, batches: Iterator[batch_division.Batch], step: int
    ) -> Iterator[batch_division.Batch]:
        for number, batch in enumerate(batches, 1):
            yield batch
            self._moved(f"batch {number} of the evaluation of step {step}")

    def _moved(self, what: str) -> None:
        self._watch.moved(what)
        self._status.beat()
