"""Persists a divided model: saves its state in parts, restores it, and exports one file."""

import dataclasses
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Sequence

import h5py

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import (
    archive,
    entries,
    files,
    initial_weights,
    memory_copies,
    shard,
    slots,
    store,
)
from tfparallel_trainer.comms import agreement
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.engines.split.execution import rank_model
from tfparallel_trainer.engines.split.state import blueprint, model_export
from tfparallel_trainer.process_settings import Settings
from tfparallel_trainer.storage import directory


class Persistence:
    """The state of the ranks of this process, and the description of the unsplit model."""

    def __init__(
        self,
        settings: Settings,
        module: user.Module,
        peers: agreement.Peers,
        ranks: Sequence[rank_model.RankModel],
        say: Callable[[str], None],
        memory_files: Sequence[int] = (),
    ) -> None:
        """Check that the state of these ranks can be saved and exported.

        Raises:
            UserCodeError: the model or its optimizer cannot be saved in parts.
            BadConfigurationError: processes do not share the folder of checkpoints and results.
            PreemptedError: a newer attempt has started.
        """
        self._settings, self._module, self._peers, self._say = settings, module, peers, say
        self.drawn = blueprint.draw(module, settings.job.trainer.seed)
        if peers.is_chief:
            model_export.check(self.drawn, module)
        checkpoint = settings.job.trainer.checkpoint
        self.state = shard.State([share_of(self.drawn, rank) for rank in ranks], self.drawn.wholes)
        self.saved: store.Store | None = None
        """The store. None: the job saves no checkpoints."""
        self.memory: memory_copies.MemoryCopies | None = None
        """Copies in memory. None: without checkpoints there are none."""
        if checkpoint:
            self.memory = memory_copies.MemoryCopies(memory_files, peers, say)
            self.saved = self._store(
                settings.checkpoints, checkpoint.keep, settings.module_sum, self.memory
            )
        self._exporting = settings.results.child(".exporting")
        """Folder of the exported state, if no checkpoint has it."""
        # Detect now, and not after training, a folder that processes do not share.
        self._unsaved = None if checkpoint else self._store(self._exporting, 1)

    def start(self) -> files.Position:
        """Restore the newest state, or load the job's initial weights.

        Returns where training starts, the same on all processes. A checkpoint or weights of another
        model are refused.
        """
        restored = None if self.saved is None else self.saved.restore(self.state)
        if self.saved is not None and restored is not None:
            self._say(f"resuming after step {restored.step} from {self.saved.source}")
            return restored
        weights = self._settings.job.trainer.initial_weights
        if weights is not None:
            load_weights(self.drawn, self.state, weights, self._settings.source_dir)
            self._say(f"starting with the weights of {weights}")
        return files.Position(step=0, epoch=self._settings.first_epoch, example=0)

    def export(self, at: files.Position) -> None:
        """Export the trained model at the end of training; raises as `export.storing` does."""
        if self.saved is not None:
            self.saved.check_owner()
        saved = [] if self.saved is None else entries.of_step(self._settings.checkpoints, at.step)
        if not saved:
            part_store = self._unsaved or self._store(self._exporting, 1)
            part_store.save(self.state, at)
            saved = entries.of_step(self._exporting, at.step)
        if self._peers.is_chief:
            self._write(saved[-1])
            self._settings.results.remove(self._exporting)

    def _write(self, checkpoint: directory.Directory) -> None:
        path = self._settings.output_dir / outputs.MODEL
        model_export.save(self.drawn, checkpoint, path, self._module)
        if self._settings.job.trainer.saved_model:
            serving = self._settings.output_dir / outputs.SAVED_MODEL
            refused = model_export.save_for_serving(self.drawn, path, serving, self._module)
            if refused is not None:
                self._say(f"warning: {refused}")

    def _store(
        self,
        folder: directory.Directory,
        keep: int,
        module_sum: str = "",
        memory: memory_copies.MemoryCopies | None = None,
    ) -> store.Store:
        job, attempt = self._settings.job_uid, self._settings.attempt
        namespace = self._settings.namespace
        return store.Store(
            folder, keep, job, attempt, self._say, self._peers, namespace, module_sum, memory
        )


def share_of(
    drawn: blueprint.Blueprint, rank: rank_model.RankModel
) -> dict[str, shard.VariableShard]:
    """The shards that a rank writes to a checkpoint."""
    weights = {
        key: shard.VariableShard(
            variable=variable,
            whole=drawn.wholes[key],
            part=rank.parts.get(key, ()),
            writes=rank.owns(key),
        )
        for key, variable in rank.weights.items()
    }
    trained = {
        key: dataclasses.replace(
            weights[key],
            part=rank.state_part(key, drawn.wholes[key].shape),
            writes=rank.owns_state(key),
        )
        for key in rank.trained
    }
    return {
        **weights,
        **slots.shards(
            rank.optimizer.keras_optimizer, trained, drawn.slots, writes_counters=rank.index == 0
        ),
    }


def load_weights(
    drawn: blueprint.Blueprint, state: shard.State, weights_path: str, folder: pathlib.Path
) -> None:
    """Assign to each rank its part of the weights of a file; the optimizer's state stays as it is.

    Its path, `trainer.initialWeights`, is relative to the folder or absolute. A missing file, or
    one of another model, is a BadConfigurationError.
    """
    with tempfile.TemporaryDirectory() as location:
        empty = pathlib.Path(location) / f"model{archive.WEIGHTS}"
        archive.save(drawn.model, empty, drawn.weights)
        with archive.opened(empty) as file:
            places, here = archive.places(file, drawn.weights), initial_weights.shapes(file)
    here |= {dataset: drawn.wholes[key].shape for dataset, key in places.items()}
    datasets = {key: dataset for dataset, key in places.items()}
    with initial_weights.reading(weights_path, folder) as path, archive.opened(path) as file:
        initial_weights.compare(path, initial_weights.shapes(file), here)
        for key, entry in state.each():
            if key in datasets:
                shard.assign(entry.variable, _blocks(file[datasets[key]], entry.box))


def _blocks(dataset: h5py.Dataset, box: shard.Box) -> Iterator[shard.Placed]:
    """Read a part of a variable, some rows at a time."""
    for part in box.blocks(shard.rows_of(box.shape, dataset.dtype.itemsize)):
        yield part.within(box), archive.value(dataset, part.slices)
