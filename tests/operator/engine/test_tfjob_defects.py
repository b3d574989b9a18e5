"""What users of TFJob suffer from cannot happen here: on a real API server, the test its kubelet.

The numbers are issues of kubeflow/training-operator.
"""

import datetime
import json
from typing import Any

import pytest

from testing import waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.life import cleanup


def _job(policy: dict[str, Any] | None = None, **roles: int) -> namespaces.Body:
    """Return a job with replicas of these roles: _job(Worker=2)."""
    job = objects.job(runPolicy=policy or {})
    job["spec"]["tfReplicaSpecs"] = {
        role: {"replicas": count, "template": objects.template()} for role, count in roles.items()
    }
    return job


async def _run(namespace: Namespace, job: namespaces.Body) -> None:
    await namespace.create_job(job)
    pod_names = [
        f"digits-{role.lower()}-{index}"
        for role, spec in job["spec"]["tfReplicaSpecs"].items()
        for index in range(spec["replicas"])
    ]
    await namespace.until_pods(*pod_names)
    await namespace.run_all()
    await namespace.until_state("Running")


async def test_a_completed_worker_is_not_run_again_when_its_pod_is_removed(
    namespace: Namespace,
) -> None:
    """1997, 2453: node scale-down removed the pod, and the worker trained once more."""
    job = _job(Worker=2)
    job["spec"]["successPolicy"] = "AllWorkers"
    async with namespace.operator():
        await _run(namespace, job)
        await namespace.end("digits-worker-1", 0)
        await namespace.until_status(
            "the worker has completed",
            lambda now: now["replicas"]["Worker"].get("completed") == "1",
        )
        namespace.kubectl("delete", "pod", "digits-worker-1", "--grace-period=0", "--force")
        await namespace.end("digits-worker-0", 0)
        status = await namespace.until_state("Succeeded")
        assert set(await namespace.pods()) == {"digits-worker-0"}
        assert status["restarts"] == {"failure": 0, "disruption": 0}


async def test_an_evaluator_never_fails_training(namespace: Namespace) -> None:
    async with namespace.operator():
        await _run(namespace, _job({"backoffLimit": 0}, Chief=1, Evaluator=1))
        await namespace.end("digits-evaluator-0", 1)
        status = await namespace.until_status(
            "training continues without the evaluator",
            lambda now: now["replicas"]["Evaluator"].get("ignored") == "0",
        )
        assert status["state"] == "Running"


async def test_the_evaluator_may_end_its_last_evaluation(namespace: Namespace) -> None:
    """1658: the success of the chief killed the evaluator before its last evaluation."""
    async with namespace.operator():
        policy = {"evaluatorGraceSeconds": 600}
        await _run(namespace, _job(policy, Chief=1, PS=1, Worker=1, Evaluator=1))
        await namespace.end("digits-chief-0", 0)
        await namespace.until_pods("digits-chief-0", "digits-evaluator-0")
        status = await namespace.status()
        assert status["state"] == "Succeeded"
        grace = namespaces.seconds_since(status["completionTime"]) + 2
        namespace.change({"runPolicy": {"evaluatorGraceSeconds": grace}})
        await namespace.until_pods("digits-chief-0")


async def test_success_and_failure_exclude_each_other(namespace: Namespace) -> None:
    """1711: a job was Succeeded and Failed at once."""
    job = _job({"backoffLimit": 0}, Chief=1, Worker=1)
    async with namespace.operator():
        await _run(namespace, job)
    await namespace.end("digits-worker-0", 1)
    await namespace.end("digits-chief-0", 0)
    async with namespace.operator():
        await namespace.until_state("Succeeded")
        await namespace.until_pods("digits-chief-0", "digits-worker-0")
        assert (await namespace.condition("Failed")).get("status") != "True"


async def test_the_limit_holds_for_exit_codes_too(namespace: Namespace) -> None:
    """2045: ExitCode restarted for ever. Limit 1 means two runs."""
    job = _job({"backoffLimit": 1}, Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    async with namespace.operator():
        await _run(namespace, job)
        await namespace.end("digits-worker-0", 137)
        await namespace.until_pods("digits-worker-0", attempt=2)
        await namespace.run_all()
        await namespace.end("digits-worker-0", 137)
        status = await namespace.until_state("Failed")
        assert (await namespace.condition("Failed"))[
            "reason"
        ] == names.Reason.BACKOFF_LIMIT_EXCEEDED
        assert status["restarts"] == {"failure": 1, "disruption": 0}


async def test_pods_and_logs_outlive_the_last_failure(namespace: Namespace) -> None:
    """3419: at the limit all pods were deleted, and with them what they had logged."""
    async with namespace.operator():
        await _run(namespace, _job({"backoffLimit": 0}, Worker=3))
        await namespace.end("digits-worker-1", 0)
        await namespace.end("digits-worker-2", 1)
        await namespace.until_state("Failed")
        await namespace.until_pods("digits-worker-1", "digits-worker-2")  # The other one still ran.


async def test_a_shrinking_job_does_not_fail(namespace: Namespace) -> None:
    """2070: the pods of workers that were taken away counted as failed."""
    job = _job({"scaleCooldownSeconds": 0}, Chief=1, Worker=2)
    job["spec"]["tfReplicaSpecs"]["Worker"] |= {"minReplicas": 1, "maxReplicas": 2}
    async with namespace.operator():
        await _run(namespace, job)
        namespace.kubectl("scale", "tfpj", "digits", "--replicas=1")
        await namespace.until_pods("digits-chief-0", "digits-worker-0", attempt=2)
        assert (await namespace.status())["restarts"] == {"failure": 0, "disruption": 0}


async def test_peers_have_addresses_before_they_are_ready(namespace_with_nodes: Namespace) -> None:
    """1458: names resolved only once pods were ready, and servers that wait for peers never are."""
    namespace = namespace_with_nodes
    unready = {"type": "Ready", "status": "False"}
    async with namespace.operator():
        await namespace.create_job(_job(Worker=2))
        await namespace.until_state("Running")
        for name in await namespace.pods():
            path = resources.PODS.path(namespace.name, name, "status")
            await namespace.api.patch(path, {"status": {"conditions": [unready]}})

        async def published() -> bool:
            slices = json.loads(namespace.kubectl("get", "endpointslices", "-ojson"))["items"]
            endpoints = [endpoint for slice_ in slices for endpoint in slice_["endpoints"] or ()]
            names_of_unready = {
                endpoint["hostname"]
                for endpoint in endpoints
                if endpoint["conditions"]["ready"] and not endpoint["conditions"]["serving"]
            }
            return names_of_unready == {"digits-worker-0", "digits-worker-1"}

        await waiting.until_async(published, "the Service names both pods, which are not ready")


async def test_a_dead_node_holds_nothing_up(
    namespace: Namespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2072, 2185: a pod on a dead node stayed Terminating, and the job hung for ever."""
    monkeypatch.setattr(cleanup, "PATIENCE", datetime.timedelta(seconds=2))
    job = _job(Worker=2)
    template = objects.template(nodeName="dead", terminationGracePeriodSeconds=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"] = template
    async with namespace.operator():
        await _run(namespace, job)
        await namespace.end("digits-worker-0", 1)
        await namespace.until_pods("digits-worker-0", "digits-worker-1", attempt=2)


async def test_a_job_is_suspended_and_resumed_with_a_changed_template(
    namespace: Namespace,
) -> None:
    """2239, 3666: a time to live broke suspension, and a resumed job was shown as suspended."""
    async with namespace.operator():
        await _run(namespace, _job({"ttlSecondsAfterFinished": 600}, Worker=1))
        namespace.change({"runPolicy": {"suspend": True}})
        await namespace.until_pods()
        await namespace.until_state("Suspended")
        template = objects.template(nodeSelector={"pool": "a"})
        namespace.change({"tfReplicaSpecs": {"Worker": {"template": template}}})
        namespace.change({"runPolicy": {"suspend": False}})
        [pod] = (await namespace.until_pods("digits-worker-0", attempt=2)).values()
        assert pod["spec"]["nodeSelector"] == {"pool": "a"}
        await namespace.until_state("Pending")
        await namespace.run_all()
        await namespace.until_state("Running")
