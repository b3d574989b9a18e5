"""Reads the state of a process from a checkpoint, or from a copy in memory."""

from collections.abc import Mapping

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import files, keys, shard


def check(
    source: files.PieceSource, index: files.Index, wholes: Mapping[str, shard.FullVariable]
) -> None:
    """Refuse (BadConfigurationError) a checkpoint of another model, by keys, shapes and labels."""

    def shown(key: str) -> str:
        return f"{key} ({(index.arrays.get(key) or wholes[key]).label})"

    there = {key: entry.shape for key, entry in index.arrays.items()}
    here = {key: whole.shape for key, whole in wholes.items()}
    differing = keys.differences(there, here, shown)
    if differing:
        raise errors.BadConfigurationError(
            f"{source} is a checkpoint of another model: {differing}. "
            "Give the changed model another claim or uri, or remove the checkpoints."
        )
    exchanged = keys.exchanged(
        {key: entry.label for key, entry in index.arrays.items() if keys.is_weight(key)},
        {key: whole.label for key, whole in wholes.items() if keys.is_weight(key)},
    )
    if exchanged is not None:
        label, then, now = exchanged
        raise errors.BadConfigurationError(
            f"{source} is a checkpoint of another model: {label} is {then} there and {now} here, "
            "so weights would change places. Give the model its order again, give the changed one "
            "another claim or uri, or remove the checkpoints."
        )


def verify(source: files.PieceSource, index: files.Index, state: shard.State) -> None:
    """Read what a process needs of a checkpoint, or raise DamagedError."""
    for key, weight_shard in state.each():
        for _ in files.blocks(source, index, key, weight_shard.box):
            pass


def assign(source: files.PieceSource, index: files.Index, state: shard.State) -> None:
    """Assign a verified checkpoint to the variables, or raise StorageError."""
    try:
        for key, weight_shard in state.each():
            parts = files.blocks(source, index, key, weight_shard.box)
            shard.assign(
                weight_shard.variable,
                ((at.within(weight_shard.box), block) for at, block in parts),
            )
    except files.DamagedError as error:
        raise errors.StorageError(f"{source} was whole and is now damaged: {error}") from error
