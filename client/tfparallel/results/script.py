"""Where a script keeps its results: in a claim that its container mounts."""

import dataclasses
import pathlib
from collections.abc import Iterator

from tfparallel import errors
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core.pods import claims


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimFolder:
    """A folder of a claim."""

    claim: str
    path: pathlib.PurePosixPath
    """Below the root of the claim."""


def find(job: types.TFParallelJob, path: str | None) -> ClaimFolder:
    """Return the folder of a claim that a path of the container means.

    Args:
        job: one without `spec.trainer`.
        path: where the script writes; None: wherever the container mounts its one claim.

    Raises:
        Failure: the container mounts no claim there that it may write to, or several.
    """
    mounts = dict(_writable_mounts(job))
    below = {
        mount: folder
        for mount, folder in mounts.items()
        if path is None or pathlib.PurePosixPath(path).is_relative_to(mount)
    }
    if not below:
        raise errors.Failure(
            f"job {job.metadata.name!r} keeps nothing{'' if path is None else f' in {path}'}: its"
            f" containers mount {_listed(mounts) or 'no claim that they may write to'}. Have the"
            " script write below the mountPath of a claim"
        )
    if path is None and len(set(below.values())) > 1:
        raise errors.Failure(
            f"job {job.metadata.name!r} may write to {_listed(mounts)}. Choose the folder of the"
            " results with --path"
        )
    mount = max(below, key=len)
    subfolder = pathlib.PurePosixPath(path or mount).relative_to(mount)
    return dataclasses.replace(below[mount], path=below[mount].path / subfolder)


def _writable_mounts(job: types.TFParallelJob) -> Iterator[tuple[str, ClaimFolder]]:
    """Yield the paths where containers that train mount claims, and what they see there."""
    for role in job.spec.tf_replica_specs.values():
        pod = load.parse_template(role.template or {}).spec
        sources = {
            volume["name"]: volume["persistentVolumeClaim"]
            for volume in pod.volumes
            if "persistentVolumeClaim" in volume
        }
        containers = (item for item in pod.containers if item.name == names.CONTAINER)
        for mount in (mount for container in containers for mount in container.volume_mounts):
            source = sources.get(mount.name)
            if source is not None and not mount.read_only and not source.get("readOnly"):
                claim = claims.name(job, source["claimName"])
                yield mount.mount_path, ClaimFolder(claim, pathlib.PurePosixPath(mount.sub_path))


def _listed(mounts: dict[str, ClaimFolder]) -> str:
    return ", ".join(f"claim {root.claim!r} at {mount}" for mount, root in mounts.items())
