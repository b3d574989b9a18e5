"""Initial weights of a divided model from a file that Keras wrote, a slice at a time."""

import pathlib
import tempfile
from collections.abc import Iterator

import h5py

from tfparallel_trainer.checkpoint import initial_weights, shard, values
from tfparallel_trainer.engines.split.state import archive, blueprint


def load(
    drawn: blueprint.Blueprint, state: shard.State, weights_path: str, folder: pathlib.Path
) -> None:
    """Assign to each rank its part of the weights of a file; the optimizer's state stays as it is.

    Args:
        drawn: the unsplit model.
        state: what the ranks of this process hold.
        weights_path: `trainer.initialWeights`: a path, relative to `folder` or absolute.
        folder: the folder of the user's module.

    Raises:
        BadConfigurationError: the file is not there, or its variables are not the model's.
        UserCodeError: Keras changes weights as it writes them, so that none belongs to a dataset.
    """
    with tempfile.TemporaryDirectory() as place:
        empty = pathlib.Path(place) / f"model{archive.WEIGHTS}"
        archive.save_weights(drawn.model, empty, drawn.weights)
        with archive.opened(empty) as file:
            places, here = archive.Layout(file, drawn.weights).places, initial_weights.shapes(file)
    here |= {place: drawn.wholes[key].shape for place, key in places.items()}
    datasets = {key: place for place, key in places.items()}
    with initial_weights.reading(weights_path, folder) as path, archive.opened(path) as file:
        initial_weights.compare(path, initial_weights.shapes(file), here)
        for key, one in state.each():
            if key in datasets:
                values.assign(one.variable, _blocks(file[datasets[key]], one.box))


def _blocks(dataset: h5py.Dataset, box: shard.Box) -> Iterator[values.Placed]:
    """Read a part of a variable, some rows at a time."""
    if not box.shape:
        yield (), archive.value(dataset, ())
        return
    rows = values.rows_of(box.shape, dataset.dtype.itemsize)
    for low in range(0, box.shape[0], rows):
        count = min(rows, box.shape[0] - low)
        part = shard.Box((box.start[0] + low, *box.start[1:]), (count, *box.shape[1:]))
        yield part.within(box), archive.value(dataset, part.slices)
