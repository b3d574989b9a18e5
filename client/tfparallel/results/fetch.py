"""Brings the results of a job to this machine, for the command and the Python client alike."""

import pathlib
from collections.abc import Callable, Sequence

from tfparallel import errors
from tfparallel.results import download, files
from tfparallel.terminal import transfer
from tfparallel_operator.api import load
from tfparallel_trainer.contract import outputs


def choose_folder(name: str) -> pathlib.Path:
    """Return the folder for results where the user names none: `init JOB` has filled ./JOB."""
    return pathlib.Path(f"{name}-model")


async def fetch(
    store: files.Store,
    part: files.ResultSelection,
    to: pathlib.Path,
    name: str,
    say: Callable[[str], None],
    *,
    is_script: bool = False,
) -> Sequence[files.ResultFile]:
    """Copy a part of the results below a folder, with a bar on a terminal; return what came.

    Args:
        place: where the results are.
        is_script: whether a script chose the names of the files.

    Raises:
        Failure: there are none, the folder cannot be written, or the connection breaks.
    """
    chosen = files.select(await store.list_files(), part, is_script=is_script)
    return await copy(store, chosen, to, name, say, is_script=is_script)


async def copy(
    store: files.Store,
    chosen: Sequence[files.ResultFile],
    to: pathlib.Path,
    name: str,
    say: Callable[[str], None],
    *,
    is_script: bool = False,
) -> Sequence[files.ResultFile]:
    """Copy files as `fetch` does."""
    with transfer.bar(sum(file.size for file in chosen)) as progress:
        fetched = await download.fetch(store, chosen, to, progress, say)
    if not fetched:
        model_file = "file *.keras" if is_script else outputs.MODEL
        raise errors.Failure(
            f"{name} has no {model_file} where it keeps its results: training has not come to"
            " its end, or somebody deleted it"
        )
    return fetched


def choose_one(
    models: Sequence[files.ResultFile], file: str | None, name: str
) -> Sequence[files.ResultFile]:
    """Return the model that a user means: a script may leave several.

    Raises:
        SpecError: no model has the name, or there are several and none is named.
    """
    listed = ", ".join(model.path for model in models)
    if file is not None:
        chosen = [model for model in models if model.path == file]
        if not chosen:
            raise load.SpecError(
                f"file: received {file!r}, and the models of job {name!r} are {listed or 'none'}."
                " Name one of them"
            )
        return chosen
    if len(models) > 1:
        raise load.SpecError(
            f"job {name!r} has several models: {listed}. Choose one with file={models[0].path!r}"
        )
    return models
