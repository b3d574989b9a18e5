"""The one decision: from a job and its children to what to write next."""

import datetime

from tfparallel_operator.api import types
from tfparallel_operator.core import build, decision, observation


def decide(
    job: types.TFParallelJob,
    children: observation.Children,
    now: datetime.datetime,
    settings: build.Settings,
    refusal: observation.Refusal | None = None,
) -> decision.Decision:
    """Say what to write for a job, given all that is known.

    Args:
        job: the job with its last written status.
        children: what was observed of its children.
        now: the time, with time zone; whole seconds.
        settings: what the installation decides for every job.
        refusal: a create that the API server refused for good since the last decision.
    """
    raise NotImplementedError
