"""Writes the trained model as one .keras file from a checkpoint, a slice at a time.

The file is the one that plain Keras would write for the unsplit model, the optimizer's state
included. But no process ever holds more than a block of one variable.
"""

import math
import pathlib
import tempfile

import h5py
import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import archive, export, files, shard
from tfparallel_trainer.comms import devices
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.engines.split.state import blueprint
from tfparallel_trainer.objective import replica
from tfparallel_trainer.storage import directory, durable

_COPIES = 3
"""Maximum number of copies of the weights in memory while Keras loads and exports a model."""


def check(drawn: blueprint.Blueprint, module: user.Module) -> None:
    """Refuse (UserCodeError) before training a model that Keras could not write after it."""
    export.check(drawn.model, module.path)
    with (
        export.storing(pathlib.Path(outputs.MODEL), module.path),
        tempfile.TemporaryDirectory() as folder,
    ):
        empty = pathlib.Path(folder) / outputs.MODEL
        archive.save(drawn.model, empty, drawn.weights)
        with archive.opened(empty) as file:
            archive.places(file, drawn.weights)


def save(
    drawn: blueprint.Blueprint,
    checkpoint: directory.Directory,
    path: pathlib.Path,
    module: user.Module,
) -> None:
    """Write `model.keras`, so that readers see all of it or what was there before.

    If the optimizer keeps averages of the weights (use_ema), these are written. The model gets the
    learning rate and the counters of the checkpoint.
    """
    draft = durable.draft(path)
    weights = durable.draft(path.with_suffix(archive.WEIGHTS))
    with export.storing(path, module.path):
        for written in (path, path.with_suffix(archive.WEIGHTS)):
            durable.remove_drafts(written)
        try:
            index = files.read_index(checkpoint)
            for key, counter in drawn.counters.items():  # Keras writes them into the config, too
                blocks = files.blocks(checkpoint, index, key, shard.box((), ()))
                shard.assign(counter, ((box.slices, block) for box, block in blocks))
            with tempfile.TemporaryDirectory() as folder:
                empty = pathlib.Path(folder) / path.name
                archive.save(drawn.model, empty, drawn.weights)
                with h5py.File(weights, "w") as target:
                    _fill(drawn, checkpoint, index, empty, target)
                archive.put_together(empty, weights, draft)
            durable.publish(draft, path)
        except files.DamagedError as error:
            raise OSError(str(error)) from error
        finally:
            draft.unlink(missing_ok=True)
            weights.unlink(missing_ok=True)


def save_for_serving(
    drawn: blueprint.Blueprint, saved: pathlib.Path, folder: pathlib.Path, module: user.Module
) -> str | None:
    """Write a SavedModel from a file that `save` wrote.

    The whole model must fit into this process. If it does not fit, returns a sentence that says so.
    Raises as `export.storing` does.
    """
    needed = _COPIES * sum(
        math.prod(variable.shape) * tf.as_dtype(variable.dtype).size
        for variable in drawn.weights.values()
    )
    free = devices.free_bytes()
    if free < needed:
        return (
            f"{folder.name} is not written, because it needs the whole model in one process, about "
            f"{needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB are free. {saved.name} is complete: "
            "export it on a larger machine."
        )
    replica.forget_names()
    model = module.build_model()
    with export.storing(folder, module.path):
        model.load_weights(saved)
    export.save_for_serving(model, folder, module.path)
    return None


def _fill(
    drawn: blueprint.Blueprint,
    checkpoint: directory.Directory,
    index: files.Index,
    empty: pathlib.Path,
    target: h5py.File,
) -> None:
    averages = drawn.averages

    def content(key: str, dataset: h5py.Dataset) -> None:
        array_key = averages.get(key, key)
        whole = shard.box((), index.arrays[array_key].shape)
        for box, block in files.blocks(checkpoint, index, array_key, whole):
            dataset[box.slices] = block

    with archive.opened(empty) as source:
        archive.fill(source, target, archive.places(source, drawn.weights), index.arrays, content)
    optimizer_file = empty.with_name(f"optimizer{archive.WEIGHTS}")
    archive.save_optimizer(drawn.model.optimizer, optimizer_file, drawn.stand_ins)
    with archive.opened(optimizer_file) as file:
        source, group = file[archive.OPTIMIZER], target.create_group(archive.OPTIMIZER)
        archive.fill(source, group, archive.places(source, drawn.stand_ins), index.arrays, content)
