"""Whether the model of a job fits its GPUs, before the job exists."""

import io
from collections.abc import Mapping, Sequence
from typing import Any

from tfparallel import errors
from tfparallel.planning import planner_process, request
from tfparallel_operator.api import load


def find_warning(
    job: Mapping[str, Any],
    documents: Sequence[Mapping[str, Any]],
    nodes: Sequence[Mapping[str, str]],
) -> str | None:
    """Return why a job's mesh is impossible on its GPUs, and what would do; None if it is not.

    None too if that is unknown: no label names a GPU that the planner knows, or the planner cannot
    run here. The job's module may need what only the image has.

    Args:
        job: the manifest.
        documents: the ConfigMaps that are created with it.
        nodes: the labels of each node with GPUs.
    """
    try:
        subject = request.read_for_gpus(job, documents, nodes)
        if subject is None:
            return None
        planner_process.ask(subject.question, subject.files, output=io.StringIO())
    except planner_process.ImpossiblePlanError as error:
        return f"{error} The job is created all the same."
    except (load.SpecError, errors.Failure):
        return None
    return None
