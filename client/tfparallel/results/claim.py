"""Results in a claim, read through a short-lived pod that mounts it."""

import asyncio
import contextlib
import dataclasses
import json
import secrets
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from tfparallel import errors, models
from tfparallel.backends.cluster import cluster_backend, objects, pod_exec, refusals
from tfparallel.results import files
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client as api
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.api_server import resources

LABEL_READER = f"{names.GROUP}/reader-of"
"""Label of the pod that reads a claim: the job's name."""

MOUNT = "/results"
_LIFE_SECONDS = 2 * 60 * 60
"""The pod ends by itself even if this machine is gone."""

_USER_ID = 65532
"""The user that the shipped trainer writes as."""

_POLL_SECONDS = 0.5
_STUCK = ("ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "CreateContainerConfigError")
"""Reasons for which waiting does not help."""

_SLEEP = f"import time; time.sleep({_LIFE_SECONDS})"
_GONE, _DENIED = 44, 45
_LEFT_OUT = {_GONE: files.GONE, _DENIED: f"{files.UNREADABLE} (Permission denied)"}
"""What an exit code of a program of the pod says of its file."""
_BEGIN = f"""
import os, sys
try:
    file = open(sys.argv[1], "rb")
except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
    sys.exit({_GONE})
except PermissionError:
    sys.exit({_DENIED})
"""
_LIST = """
import json, os, stat, sys
root, claim = sys.argv[1], os.path.realpath(sys.argv[2])
def describe(path):
    try:
        path.encode()
    except UnicodeError:
        return 0, "its name is no UTF-8"
    try:
        if os.path.commonpath([os.path.realpath(path), claim]) != claim:
            return 0, "it is a link that leads out of the claim"
        status = os.stat(path)
    except OSError:
        return 0, "it is a link to nothing"
    return status.st_size, "" if stat.S_ISREG(status.st_mode) else "it is no file"
for folder, folders, files in os.walk(root):
    folders[:] = [name for name in folders if not name.startswith(".")]
    links = [name for name in folders if os.path.islink(os.path.join(folder, name))]
    for name in files + links:
        path = os.path.join(folder, name)
        if not name.startswith("."):
            print(json.dumps([os.path.relpath(path, root), *describe(path)]))
"""
_BLOCKS = """
def blocks(begin, left):
    with file:
        file.seek(begin)
        while left > 0 and (block := file.read(min(left, 1 << 18))):
            left -= len(block)
            yield block
"""
_READ = """
out = sys.stdout.buffer
for block in blocks(int(sys.argv[2]), int(sys.argv[3])):
    out.write(block)
out.flush()
"""
_DIGEST = """
import hashlib
digest = hashlib.sha256()
for block in blocks(0, int(sys.argv[2])):
    digest.update(block)
print(digest.hexdigest())
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Reader:
    """How a claim is read."""

    claim: str
    folder: str
    """Below the root of the claim."""
    template: Mapping[str, Any]
    """The spec of a pod of the job, or of its template: image, user, Secrets, tolerations."""
    image: str
    start_seconds: float = 300.0
    """How long the pod may take to start."""
    unschedulable_seconds: float = 60.0
    """How long it may find no node: an autoscaler needs a while."""


@dataclasses.dataclass(frozen=True, slots=True)
class ClaimStore:
    """A folder of a claim, as a pod sees it."""

    cluster: cluster_backend.ClusterBackend
    pod: str
    folder: str

    async def list_files(self) -> Sequence[files.ResultFile]:
        """Return the files below the folder."""
        text = await self._run(_LIST, self.folder, MOUNT)
        return [files.ResultFile(*json.loads(line)) for line in text.splitlines()]

    async def read(self, file: files.ResultFile, offset: int) -> AsyncIterator[bytes]:
        """Yield the content of a file from a byte on."""
        path, left = f"{self.folder}/{file.path}", file.size - offset
        command = ("python", "-c", _BEGIN + _BLOCKS + _READ, path, str(offset), str(left))
        with _telling_left_out():
            async for chunk in pod_exec.run(self.cluster, self.pod, command):
                yield chunk

    async def compute_digest(self, file: files.ResultFile) -> str | None:
        """Return the SHA-256 of a file."""
        path, program = f"{self.folder}/{file.path}", _BEGIN + _BLOCKS + _DIGEST
        return (await self._run(program, path, str(file.size))).strip()

    async def _run(self, program: str, *arguments: str) -> str:
        command = ("python", "-c", program, *arguments)
        with _telling_left_out():
            parts = [chunk async for chunk in pod_exec.run(self.cluster, self.pod, command)]
        return b"".join(parts).decode()


@contextlib.contextmanager
def _telling_left_out() -> Iterator[None]:
    """Raise LeftOutError where a program of the pod cannot open its file."""
    try:
        yield
    except pod_exec.CommandFailure as failure:
        if failure.exit_code in _LEFT_OUT:
            raise files.LeftOutError(_LEFT_OUT[failure.exit_code]) from failure
        raise


@contextlib.asynccontextmanager
async def opened(
    cluster: cluster_backend.ClusterBackend,
    job: models.Job,
    reader: Reader,
    say: Callable[[str], None],
) -> AsyncIterator[ClaimStore]:
    """Run a pod that mounts the claim of a job; it is deleted in the end.

    Raises:
        Failure: the claim is missing, or the pod does not start.
    """
    with refusals.explained(cluster.context):
        node = await _find_node(cluster, job, reader)
        manifest = build_pod(job, reader, node)
    name = manifest["metadata"]["name"]
    say(f"reading claim {reader.claim} through pod {name}")
    try:
        with refusals.explained(cluster.context):
            await cluster.api.create(resources.PODS, job.namespace, manifest)
        await _wait(cluster, name, reader)
        yield ClaimStore(cluster, name, f"{MOUNT}/{reader.folder}")
    finally:
        await _delete(cluster, job.namespace, name)


async def _delete(cluster: cluster_backend.ClusterBackend, namespace: str, name: str) -> None:
    """Delete the pod, also if Ctrl-C came before the answer to its creation."""
    with contextlib.suppress(api_errors.ApiError):
        pod = await cluster.api.get(resources.PODS.path(namespace, name))
        await cluster.api.delete(resources.PODS, namespace, name, pod["metadata"]["uid"])


async def _find_node(
    cluster: cluster_backend.ClusterBackend, job: models.Job, reader: Reader
) -> str | None:
    """Return the node that has a ReadWriteOnce claim mounted; None: any node will do."""
    try:
        claim = await cluster.api.get(resources.CLAIMS.path(job.namespace, reader.claim))
    except api_errors.NotFound as error:
        raise errors.Failure(
            f"claim {reader.claim!r} of job {job.name!r} does not exist in namespace"
            f" {job.namespace!r}: it was deleted with what it held. Train again, and keep the claim"
        ) from error
    modes = claim["spec"].get("accessModes", [])
    if not {"ReadWriteOnce", "ReadWriteOncePod"} & set(modes) or "ReadWriteMany" in modes:
        return None
    pods = await cluster.api.list(resources.PODS, job.namespace)
    users = [pod for pod in pods.items if _mounts(pod, reader.claim)]
    if users and "ReadWriteOncePod" in modes:
        raise errors.Failure(
            f"claim {reader.claim!r} is ReadWriteOncePod, and pod {users[0]['metadata']['name']}"
            " uses it. Wait until that pod has ended"
        )
    return next((node for pod in users if (node := pod["spec"].get("nodeName"))), None)


def _mounts(pod: api.Object, claim: str) -> bool:
    """Whether a pod that has not ended mounts a claim."""
    volumes = pod["spec"].get("volumes", [])
    named = {volume.get("persistentVolumeClaim", {}).get("claimName") for volume in volumes}
    return claim in named and pod.get("status", {}).get("phase") in ("Pending", "Running")


def build_pod(job: models.Job, reader: Reader, node: str | None) -> dict[str, Any]:
    """Build the pod that mounts a claim read-only and sleeps."""
    template = reader.template
    container = {
        "name": names.CONTAINER,
        "image": reader.image,
        "command": ["python", "-c", _SLEEP],
        "securityContext": {
            "allowPrivilegeEscalation": False,
            "capabilities": {"drop": ["ALL"]},
        },
        "resources": {
            "requests": {"cpu": "50m", "memory": "64Mi"},
            "limits": {"cpu": "1", "memory": "256Mi"},
        },
        "volumeMounts": [{"name": "results", "mountPath": MOUNT, "readOnly": True}],
    }
    spec: dict[str, Any] = {
        "restartPolicy": "Never",
        "activeDeadlineSeconds": _LIFE_SECONDS,
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": {**_DEFAULT_USER, **template.get("securityContext", {})},
        "containers": [container],
        "volumes": [{"name": "results", "persistentVolumeClaim": {"claimName": reader.claim}}],
    }
    copied = ("imagePullSecrets", "tolerations", "nodeSelector")
    spec |= {field: template[field] for field in copied if template.get(field)}
    if node is not None:
        spec["affinity"] = _on(node)
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{job.name}-reader-{secrets.token_hex(3)}",
            "labels": {
                names.LABEL_MANAGED_BY: cluster_backend.FIELD_MANAGER,
                LABEL_READER: job.name,
            },
            "ownerReferences": [objects.owner_reference(job)],
        },
        "spec": spec,
    }


_DEFAULT_USER = {
    "runAsNonRoot": True,
    "runAsUser": _USER_ID,
    "runAsGroup": _USER_ID,
    "fsGroup": _USER_ID,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def _on(node: str) -> dict[str, Any]:
    field = {"key": "metadata.name", "operator": "In", "values": [node]}
    terms = [{"matchFields": [field]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    return {"nodeAffinity": required}


async def _wait(cluster: cluster_backend.ClusterBackend, name: str, reader: Reader) -> None:
    """Wait until a pod runs.

    Raises:
        Failure: it does not, with the reason of scheduler or kubelet.
    """
    loop = asyncio.get_running_loop()
    begin = loop.time()
    while True:
        with refusals.explained(cluster.context):
            pod = objects.parse_pod(
                await cluster.api.get(resources.PODS.path(cluster.namespace, name))
            )
        if pod.phase == "Running" and not pod.reason:
            return
        waited = loop.time() - begin
        unschedulable = not pod.node and "Unschedulable" in pod.reason
        if unschedulable and waited > reader.unschedulable_seconds:
            raise errors.Failure(
                f"no node takes the pod that reads claim {reader.claim!r} ({pod.reason}). Free a"
                " node that reaches the claim, or wait until the pods that use it have ended"
            )
        if pod.reason.partition(":")[0] in _STUCK:
            raise errors.Failure(
                f"the pod that reads claim {reader.claim!r} cannot start ({pod.reason}). Choose the"
                " image with --image IMAGE: one with Python that your nodes can pull"
            )
        if pod.phase in ("Succeeded", "Failed", "Terminating") or waited > reader.start_seconds:
            raise errors.Failure(
                f"the pod that reads claim {reader.claim!r} does not run: {pod.phase} after"
                f" {waited:.0f} s ({pod.reason or 'no reason given'}). Run the command again"
            )
        await asyncio.sleep(_POLL_SECONDS)
