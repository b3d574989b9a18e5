"""Containers that a cluster adds to every pod, and that never end, hold no job up."""

import base64
import contextlib
import datetime
from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web

from testing import waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.engine.reports import tls

WEBHOOKS = resources.Resource("admissionregistration.k8s.io/v1", "mutatingwebhookconfigurations")
PROXY = {"name": "proxy", "image": "proxy:test"}
ALL = ("digits-chief-0", "digits-worker-0")


async def _inject(request: web.Request) -> web.Response:
    """Answer as a service mesh does: its container comes first in every pod."""
    review = await request.json(loads=orjson.loads)
    change = [{"op": "add", "path": "/spec/containers/0", "value": PROXY}]
    response = {
        "uid": review["request"]["uid"],
        "allowed": True,
        "patchType": "JSONPatch",
        "patch": base64.b64encode(orjson.dumps(change)).decode(),
    }
    return web.json_response(
        {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    )


@contextlib.asynccontextmanager
async def _mesh(namespace: Namespace) -> AsyncIterator[None]:
    """Have the API server ask a webhook of ours about each pod of the test's namespace."""
    bundle = tls.renew(None, "127.0.0.1", datetime.datetime.now(datetime.UTC))
    application = web.Application()
    application.router.add_post("/", _inject)
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=bundle.context()).start()
    webhook = {
        "name": "sidecars.test.example",
        "clientConfig": {
            "url": f"https://127.0.0.1:{runner.addresses[0][1]}/",
            "caBundle": base64.b64encode(bundle.authorities.encode()).decode(),
        },
        "rules": [
            {
                "operations": ["CREATE"],
                "apiGroups": [""],
                "apiVersions": ["v1"],
                "resources": ["pods"],
            }
        ],
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace.name}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    manifest = {"metadata": {"name": namespace.name}, "webhooks": [webhook]}
    await namespace.api.create(WEBHOOKS, None, manifest)
    try:
        yield
    finally:
        namespace.kubectl("delete", WEBHOOKS.plural, namespace.name)
        await runner.cleanup()


async def _write(namespace: Namespace, pod: str, phase: str, proxy: Any, **training: Any) -> None:
    """Write the status of a pod of two containers as the kubelet does."""
    defaults = {"ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
    statuses = [
        {"name": name, "state": state, **defaults}
        for name, state in ((PROXY["name"], proxy), (names.CONTAINER, training))
    ]
    path = resources.PODS.path(namespace.name, pod, "status")
    await namespace.api.patch(path, {"status": {"phase": phase, "containerStatuses": statuses}})


async def _injected(namespace: Namespace) -> bool:
    """Whether the API server asks the webhook already; it takes a moment to hear of it."""
    probe = {"metadata": {"name": "probe"}, "spec": objects.template()["spec"]}
    pod = await namespace.api.create(resources.PODS, namespace.name, probe)
    uid = pod["metadata"]["uid"]
    await namespace.api.delete(resources.PODS, namespace.name, "probe", uid, force=True)
    return len(pod["spec"]["containers"]) == 2


async def test_an_injected_container_that_never_ends_blocks_neither_start_nor_end(
    namespace: Namespace,
) -> None:
    runs: dict[str, Any] = {"running": {}}
    async with _mesh(namespace), namespace.operator():
        await waiting.until_async(lambda: _injected(namespace), "the webhook is asked")
        await namespace.create_job(objects.job(workers=1))
        pods = await namespace.until_pods(*ALL)
        for pod in pods.values():
            names_of_containers = [container["name"] for container in pod["spec"]["containers"]]
            assert names_of_containers == ["proxy", "tensorflow"]
        # One sidecar is not ready, as with a proxy that waits for its control plane.
        await _write(
            namespace, ALL[0], "Pending", {"waiting": {"reason": "PodInitializing"}}, **runs
        )
        await _write(namespace, ALL[1], "Running", runs, **runs)
        await namespace.until_state("Running")
        # An exit in the first attempt, and the next attempt takes the place of pods that live on.
        failed = {"exitCode": 1, "reason": "Error"}
        await _write(namespace, ALL[1], "Running", runs, terminated=failed)
        await namespace.until_pods(*ALL, attempt=2)
        for name in ALL:
            await _write(namespace, name, "Running", runs, **runs)
        await namespace.until_state("Running")
        done = {"exitCode": 0, "reason": "Completed"}
        await _write(namespace, ALL[0], "Running", runs, terminated=done)
        status = await namespace.until_state("Succeeded")
        assert status["restarts"] == {"failure": 1, "disruption": 0}
        assert status["replicas"]["Chief"]["succeeded"] == 1
        # Their proxies would hold the nodes for ever.
        await namespace.until_pods(attempt=2)
