"""What data functions are asked for in tests."""

import pathlib

from tfparallel_trainer import user
from tfparallel_trainer.data import batch_division, data_functions


def build_request(
    division: batch_division.BatchSharding,
    seed: int,
    folder: pathlib.Path = pathlib.Path(),
    *,
    endless_allowed: bool = True,
) -> data_functions.Request:
    """The request of a job of this seed, whose folders are one."""
    context = user.Context(
        seed=seed,
        epoch=0,
        global_batch_size=division.batch_size,
        source_dir=folder,
        output_dir=folder,
    )
    return data_functions.Request(context, division, endless_allowed)
