"""Whether the model of a job fits its GPUs, before the job exists."""

import contextlib
import io
import pathlib
from collections.abc import Sequence

from tfparallel import errors
from tfparallel.planning import planner_process, request
from tfparallel_operator.api import load


def find_misfit(file: pathlib.Path, overrides: Sequence[str] = ()) -> str | None:
    """Return why a job's mesh is impossible on its GPUs, and what would do; None if it is not.

    None too if that is unknown: no label of its nodes names a GPU that the planner knows, or the
    planner cannot run here. Its module may need what only the image has.

    Args:
        file: of the job.
        overrides: changes of its fields, as `--set` takes them.
    """
    try:
        subject = request.read_for_gpus(file, overrides)
        if subject is not None:
            with contextlib.redirect_stderr(io.StringIO()):  # what the module prints
                planner_process.ask(subject.question, subject.files)
    except planner_process.ImpossiblePlanError as error:
        return str(error)
    except (load.SpecError, errors.Failure):
        return None
    return None
