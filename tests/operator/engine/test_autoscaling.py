"""A HorizontalPodAutoscaler drives a job: the real controller, on metrics of the test's."""

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest
import yaml

from testing import paths, waiting
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import pending_reasons, remedies

pytestmark = [pytest.mark.timeout(900)]

LIMIT_SECONDS = 400.0
"""The autoscaler learns of a new kind within 30 s where the machine is not busy."""

METRICS = resources.Resource("metrics.k8s.io/v1beta1", "pods")
AUTOSCALERS = resources.Resource("autoscaling/v2", "horizontalpodautoscalers")

SCHEMA = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
METRICS_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "pods.metrics.k8s.io",
        "annotations": {"api-approved.kubernetes.io": "unapproved, in place of a metrics server"},
    },
    "spec": {
        "group": "metrics.k8s.io",
        "names": {
            "kind": "PodMetrics",
            "listKind": "PodMetricsList",
            "plural": "pods",
            "singular": "podmetrics",
        },
        "scope": "Namespaced",
        "versions": [
            {
                "name": "v1beta1",
                "served": True,
                "storage": True,
                "schema": {"openAPIV3Schema": SCHEMA},
            }
        ],
    },
}


@contextlib.asynccontextmanager
async def _metrics(namespace: Namespace) -> AsyncIterator[None]:
    """Serve what a metrics server would, from objects."""
    namespace.kubectl("apply", "-f", "-", body=METRICS_DEFINITION)
    name = METRICS_DEFINITION["metadata"]["name"]
    try:
        namespace.cluster.wait_established(name)
        yield
    finally:
        namespace.kubectl("delete", "crd", name)


async def _use(namespace: Namespace, pod: str, memory: str) -> None:
    """Say how much memory a pod uses."""
    labels = (await namespace.pods())[pod]["metadata"]["labels"]
    await namespace.api.create(
        METRICS,
        namespace.name,
        {
            "apiVersion": METRICS.api_version,
            "kind": "PodMetrics",
            "metadata": {"name": pod, "labels": labels},
            "timestamp": "2030-01-01T00:00:00Z",
            "window": "10s",
            "containers": [{"name": names.CONTAINER, "usage": {"cpu": "1", "memory": memory}}],
        },
    )


async def test_an_autoscaler_adds_workers(namespace_with_nodes: Namespace) -> None:
    namespace = namespace_with_nodes
    job = objects.job(runPolicy={"scaleCooldownSeconds": 0})
    job["spec"]["tfReplicaSpecs"]["Worker"].update(minReplicas=1, maxReplicas=8)
    # KWOK deletes pods by name, now and then one that has just taken the name of another. So
    # none is scheduled to its nodes: the test is the kubelet.
    for role in job["spec"]["tfReplicaSpecs"].values():
        role["template"]["spec"]["schedulerName"] = "none"
    target = {"apiVersion": names.API_VERSION, "kind": names.KIND, "name": "digits"}
    goal = {"type": "AverageValue", "averageValue": "100Mi"}
    metric = {"type": "Resource", "resource": {"name": "memory", "target": goal}}
    spec = {"scaleTargetRef": target, "minReplicas": 1, "maxReplicas": 4, "metrics": [metric]}
    async with _metrics(namespace), namespace.operator():
        await namespace.create_job(job)
        await namespace.until_pods(
            "digits-chief-0", *(f"digits-worker-{index}" for index in range(2))
        )
        await namespace.run_all()
        await namespace.until_state("Running")
        for worker in range(2):
            await _use(namespace, f"digits-worker-{worker}", "200Mi")
        autoscaler = {"metadata": {"name": "digits"}, "spec": spec}
        await namespace.api.create(AUTOSCALERS, namespace.name, autoscaler)
        path = AUTOSCALERS.path(namespace.name, "digits")

        async def scaled() -> tuple[object, object]:
            return (await namespace.status()).get("workers"), (await namespace.api.get(path)).get(
                "status"
            )

        await waiting.until_async(
            scaled,
            "the autoscaler has doubled the workers (their number, and what it says)",
            LIMIT_SECONDS,
            when=lambda counts: counts[0] == 4,
        )
        workers = [f"digits-worker-{index}" for index in range(4)]
        await namespace.run_pods("digits-chief-0", *workers, attempt=2)
    namespace.kubectl("delete", "hpa", "digits")


async def test_the_words_of_an_autoscaler_without_metrics_have_a_remedy(
    namespace_with_nodes: Namespace,
) -> None:
    namespace = namespace_with_nodes
    job = objects.job()
    job["spec"]["tfReplicaSpecs"]["Worker"].update(minReplicas=1, maxReplicas=8)
    autoscaler = yaml.safe_load((paths.EXAMPLES / "elastic/autoscaler.yaml").read_text())
    autoscaler["metadata"]["name"] = autoscaler["spec"]["scaleTargetRef"]["name"] = "digits"
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Running")
        namespace.kubectl("create", "-f", "-", body=autoscaler)

        async def warnings() -> list[str]:
            events = (await namespace.api.list(resources.EVENTS, namespace.name)).items
            parsed = map(pending_reasons.parse_event, events)
            return [
                event.message
                for event in parsed
                if event.object == "horizontalpodautoscaler/digits"
                and event.reason == "FailedGetResourceMetric"
            ]

        messages = await waiting.until_async(warnings, "a warning of the autoscaler", LIMIT_SECONDS)
    assert {remedies.find(word).partition(",")[0] for word in messages} == {
        "Install metrics-server"
    }
    namespace.kubectl("delete", "hpa", "digits")
