"""An API server on loopback that has a document for each path, and a kubeconfig for it."""

import pathlib
from collections.abc import Mapping
from typing import Any

import yaml
from aiohttp import web

from testing.operator import scripted_server
from tfparallel_operator.api import names


def answers(
    documents: Mapping[str, Any], watches: Mapping[str, scripted_server.Answer] | None = None
) -> scripted_server.Answer:
    """Answer each path with its document, and a watch of it with its stream; others with 404."""

    async def answer(request: web.Request) -> web.StreamResponse:
        path = request.path
        if "watch" in request.query and watches is not None:
            return await watches[path](request)
        if path in documents:
            return await scripted_server.document(documents[path])(request)
        message = f'"{path.rpartition("/")[2]}" not found'
        status = {"kind": "Status", "reason": "NotFound", "code": 404, "message": message}
        return await scripted_server.document(status, status=404)(request)

    return answer


def kubeconfig(folder: pathlib.Path, url: str, namespace: str = "team") -> pathlib.Path:
    """Write a kubeconfig for a server, with two contexts: kind-dev, and production."""
    cluster = {"name": "cluster", "cluster": {"server": url}}
    context = {"cluster": "cluster", "user": "me", "namespace": namespace}
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "kind-dev",
        "clusters": [cluster],
        "users": [{"name": "me", "user": {"token": "token"}}],
        "contexts": [{"name": name, "context": context} for name in ("kind-dev", "production")],
    }
    file = folder / "kubeconfig.yaml"
    file.write_text(yaml.safe_dump(content))
    return file


def job(name: str, version: int = 1, *, state: str = "Running", step: int = 7) -> dict[str, Any]:
    """Return a job as the API server has it."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": names.KIND,
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-of-{name}",
            "resourceVersion": str(version),
            "creationTimestamp": "2026-01-01T00:00:00Z",
        },
        "spec": {"tfReplicaSpecs": {"Worker": {"replicas": 2}}},
        "status": {
            "state": state,
            "strategy": "MultiWorkerMirrored",
            "ready": "2/2",
            "conditions": [
                {
                    "type": state,
                    "status": "True",
                    "reason": "ReplicasRunning",
                    "message": "2/2 replicas run or have completed",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
            "progress": {"step": step, "totalSteps": 10, "metrics": {"loss": "0.5"}},
        },
    }
