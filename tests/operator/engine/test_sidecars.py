"""Containers that a cluster adds to every pod, and that never end, hold no job up."""

import base64
import contextlib
import datetime
from collections.abc import AsyncIterator
from typing import Any

import orjson
from aiohttp import web

from testing import waiting
from testing.operator import harness, objects
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
async def _mesh(place: harness.Place) -> AsyncIterator[None]:
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
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": place.namespace}},
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    manifest = {"metadata": {"name": place.namespace}, "webhooks": [webhook]}
    await place.api.create(WEBHOOKS, None, manifest)
    try:
        yield
    finally:
        place.kubectl("delete", WEBHOOKS.plural, place.namespace)
        await runner.cleanup()


async def _write(place: harness.Place, pod: str, phase: str, proxy: Any, **training: Any) -> None:
    """Write the status of a pod of two containers as the kubelet does."""
    rest = {"ready": False, "restartCount": 0, "image": "x", "imageID": "x"}
    statuses = [
        {"name": name, "state": state, **rest}
        for name, state in ((PROXY["name"], proxy), (names.CONTAINER, training))
    ]
    path = resources.PODS.path(place.namespace, pod, "status")
    await place.api.patch(path, {"status": {"phase": phase, "containerStatuses": statuses}})


async def _injected(place: harness.Place) -> bool:
    """Whether the API server asks the webhook already; it takes a moment to hear of it."""
    probe = {"metadata": {"name": "probe"}, "spec": objects.template()["spec"]}
    pod = await place.api.create(resources.PODS, place.namespace, probe)
    uid = pod["metadata"]["uid"]
    await place.api.delete(resources.PODS, place.namespace, "probe", uid, force=True)
    return len(pod["spec"]["containers"]) == 2


async def test_an_injected_container_that_never_ends_blocks_neither_start_nor_end(
    place: harness.Place,
) -> None:
    runs: dict[str, Any] = {"running": {}}
    async with _mesh(place), place.operator():
        await waiting.until_async(lambda: _injected(place), "the webhook is asked")
        await place.create_job(objects.job(workers=1))
        pods = await place.until_pods(*ALL)
        for pod in pods.values():
            names_of_containers = [container["name"] for container in pod["spec"]["containers"]]
            assert names_of_containers == ["proxy", "tensorflow"]
        # One sidecar is not ready, as with a proxy that waits for its control plane.
        await _write(place, ALL[0], "Pending", {"waiting": {"reason": "PodInitializing"}}, **runs)
        await _write(place, ALL[1], "Running", runs, **runs)
        await place.until_state("Running")
        # An exit in the first attempt, and the next attempt takes the place of pods that live on.
        failed = {"exitCode": 1, "reason": "Error"}
        await _write(place, ALL[1], "Running", runs, terminated=failed)
        await place.until_pods(*ALL, attempt=2)
        for name in ALL:
            await _write(place, name, "Running", runs, **runs)
        await place.until_state("Running")
        done = {"exitCode": 0, "reason": "Completed"}
        await _write(place, ALL[0], "Running", runs, terminated=done)
        status = await place.until_state("Succeeded")
        assert status["restarts"] == {"failure": 1, "disruption": 0}
        assert status["replicas"]["Chief"]["succeeded"] == 1
        # Their proxies would hold the nodes for ever.
        await place.until_pods(attempt=2)
