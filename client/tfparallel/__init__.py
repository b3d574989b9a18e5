"""Train TensorFlow models with TFParallelJob, in a cluster or on this machine.

The client for Python:

    import tfparallel

    client = tfparallel.TrainerClient(tfparallel.Local())
    job = client.train("model.py", workers=2, epochs=3)
    client.wait_for_job_status(job.name)

The names below are imported when they are used, so that the command starts quickly.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tfparallel.client import TrainerClient
    from tfparallel.diagnosis.findings import Diagnosis
    from tfparallel.errors import Failure, JobNotFound, MisfitWarning
    from tfparallel.models import Event, Job, Progress, Replica
    from tfparallel.places import Cluster, Local
    from tfparallel.progress_bar import ProgressBar
    from tfparallel_operator.api.load import SpecError
    from tfparallel_operator.api.names import State

__all__ = [
    "Cluster",
    "Diagnosis",
    "Event",
    "Failure",
    "Job",
    "JobNotFound",
    "Local",
    "MisfitWarning",
    "Progress",
    "ProgressBar",
    "Replica",
    "SpecError",
    "State",
    "TrainerClient",
]

_MODULES = {
    "Cluster": "tfparallel.places",
    "Diagnosis": "tfparallel.diagnosis.findings",
    "Event": "tfparallel.models",
    "Failure": "tfparallel.errors",
    "Job": "tfparallel.models",
    "JobNotFound": "tfparallel.errors",
    "Local": "tfparallel.places",
    "MisfitWarning": "tfparallel.errors",
    "Progress": "tfparallel.models",
    "ProgressBar": "tfparallel.progress_bar",
    "Replica": "tfparallel.models",
    "SpecError": "tfparallel_operator.api.load",
    "State": "tfparallel_operator.api.names",
    "TrainerClient": "tfparallel.client",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
