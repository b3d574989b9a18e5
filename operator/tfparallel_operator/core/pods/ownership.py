"""Labels and metadata of the objects that the operator creates for a job."""

from typing import Any

from tfparallel_operator.api import names, types


def labels(job: types.TFParallelJob) -> dict[str, str]:
    """Return the labels of every child, by which the operator watches children."""
    return {names.LABEL_MANAGED_BY: names.MANAGED_BY, names.LABEL_JOB: job.metadata.name}


def metadata(job: types.TFParallelJob, name: str) -> dict[str, Any]:
    """Return the metadata of a child, which is deleted with the job."""
    return {
        "name": name,
        "namespace": job.metadata.namespace,
        "labels": labels(job),
        "ownerReferences": [
            {
                "apiVersion": names.API_VERSION,
                "kind": names.KIND,
                "name": job.metadata.name,
                "uid": job.metadata.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
