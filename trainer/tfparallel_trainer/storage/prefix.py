"""Where in a bucket a job keeps its results: below its namespace and its name.

Jobs of earlier versions, and local runs, keep them below their name alone. A job of this name goes
on there, if no other namespace has taken the prefix.
"""

import functools
import json

from tfparallel_trainer.contract import outputs
from tfparallel_trainer.storage import address, bucket, connection


@functools.cache
def of_job(uri: str, namespace: str, name: str) -> address.Address:
    """Return the prefix of a job; without a namespace it is that of earlier versions.

    Args:
        uri: `trainer.checkpoint.uri`.
        namespace: of the job; empty in a local run.
        name: of the job.

    Raises:
        OSError: the store does not answer.
    """
    root = address.Address.parse(uri)
    plain = root.child(name)
    if not namespace or _owner_namespace(plain) in ("", namespace):
        return plain
    return root.child(namespace).child(name)


def _owner_namespace(location: address.Address) -> str | None:
    """The namespace whose job has taken a prefix; empty if it is not told, None if none has."""
    try:
        owner = json.loads(bucket.Bucket(location.child(outputs.CHECKPOINTS)).read(outputs.OWNER))
    except (FileNotFoundError, connection.RefusedError):  # without the right to list, S3 refuses
        return None
    except (ValueError, RecursionError):
        return ""
    return str(owner.get("namespace", "")) if isinstance(owner, dict) else ""
