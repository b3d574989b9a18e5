"""What users of TFJob suffer from cannot happen here: on a real API server, the test its kubelet.

The numbers are issues of kubeflow/training-operator.
"""

import datetime
import json
from typing import Any

import pytest

from testing import waiting
from testing.operator import harness, objects
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.life import cleanup


def _job(policy: dict[str, Any] | None = None, **roles: int) -> harness.Body:
    """Return a job with replicas of these roles: _job(Worker=2)."""
    job = objects.job(runPolicy=policy or {})
    job["spec"]["tfReplicaSpecs"] = {
        role: {"replicas": count, "template": objects.template()} for role, count in roles.items()
    }
    return job


async def _run(place: harness.Place, job: harness.Body) -> None:
    await place.create_job(job)
    pod_names = [
        f"digits-{role.lower()}-{index}"
        for role, spec in job["spec"]["tfReplicaSpecs"].items()
        for index in range(spec["replicas"])
    ]
    await place.until_pods(*pod_names)
    await place.run_all()
    await place.until_state("Running")


async def test_a_completed_worker_is_not_run_again_when_its_pod_is_removed(
    place: harness.Place,
) -> None:
    """1997, 2453: node scale-down removed the pod, and the worker trained once more."""
    job = _job(Worker=2)
    job["spec"]["successPolicy"] = "AllWorkers"
    async with place.operator():
        await _run(place, job)
        await place.end("digits-worker-1", 0)
        await place.until_status(
            "the worker has completed",
            lambda now: now["replicas"]["Worker"].get("completed") == "1",
        )
        place.kubectl("delete", "pod", "digits-worker-1", "--grace-period=0", "--force")
        await place.end("digits-worker-0", 0)
        status = await place.until_state("Succeeded")
        assert set(await place.pods()) == {"digits-worker-0"}
        assert status["restarts"] == {"failure": 0, "disruption": 0}


async def test_an_evaluator_never_fails_training(place: harness.Place) -> None:
    async with place.operator():
        await _run(place, _job({"backoffLimit": 0}, Chief=1, Evaluator=1))
        await place.end("digits-evaluator-0", 1)
        status = await place.until_status(
            "training goes on without the evaluator",
            lambda now: now["replicas"]["Evaluator"].get("ignored") == "0",
        )
        assert status["state"] == "Running"


async def test_the_evaluator_may_end_its_last_evaluation(place: harness.Place) -> None:
    """1658: the success of the chief killed the evaluator before its last evaluation."""
    async with place.operator():
        policy = {"evaluatorGraceSeconds": 600}
        await _run(place, _job(policy, Chief=1, PS=1, Worker=1, Evaluator=1))
        await place.end("digits-chief-0", 0)
        await place.until_pods("digits-chief-0", "digits-evaluator-0")
        status = await place.status()
        assert status["state"] == "Succeeded"
        grace = harness.seconds_since(status["completionTime"]) + 2
        place.change({"runPolicy": {"evaluatorGraceSeconds": grace}})
        await place.until_pods("digits-chief-0")


async def test_success_and_failure_exclude_each_other(place: harness.Place) -> None:
    """1711: a job was Succeeded and Failed at once."""
    job = _job({"backoffLimit": 0}, Chief=1, Worker=1)
    async with place.operator():
        await _run(place, job)
    await place.end("digits-worker-0", 1)
    await place.end("digits-chief-0", 0)
    async with place.operator():
        await place.until_state("Succeeded")
        await place.until_pods("digits-chief-0", "digits-worker-0")
        assert (await place.condition("Failed")).get("status") != "True"


async def test_the_limit_holds_for_exit_codes_too(place: harness.Place) -> None:
    """2045: ExitCode restarted for ever. Limit 1 means two runs."""
    job = _job({"backoffLimit": 1}, Worker=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["restartPolicy"] = "ExitCode"
    async with place.operator():
        await _run(place, job)
        await place.end("digits-worker-0", 137)
        await place.until_pods("digits-worker-0", attempt=2)
        await place.run_all()
        await place.end("digits-worker-0", 137)
        status = await place.until_state("Failed")
        assert (await place.condition("Failed"))["reason"] == names.Reason.BACKOFF_LIMIT_EXCEEDED
        assert status["restarts"] == {"failure": 1, "disruption": 0}


async def test_pods_and_logs_outlive_the_last_failure(place: harness.Place) -> None:
    """3419: at the limit all pods were deleted, and with them what they had logged."""
    async with place.operator():
        await _run(place, _job({"backoffLimit": 0}, Worker=3))
        await place.end("digits-worker-1", 0)
        await place.end("digits-worker-2", 1)
        await place.until_state("Failed")
        await place.until_pods("digits-worker-1", "digits-worker-2")  # The other one still ran.


async def test_a_shrinking_job_does_not_fail(place: harness.Place) -> None:
    """2070: the pods of workers that were taken away counted as failed."""
    job = _job({"scaleCooldownSeconds": 0}, Chief=1, Worker=2)
    job["spec"]["tfReplicaSpecs"]["Worker"] |= {"minReplicas": 1, "maxReplicas": 2}
    async with place.operator():
        await _run(place, job)
        place.kubectl("scale", "tfpj", "digits", "--replicas=1")
        await place.until_pods("digits-chief-0", "digits-worker-0", attempt=2)
        assert (await place.status())["restarts"] == {"failure": 0, "disruption": 0}


async def test_peers_have_addresses_before_they_are_ready(place_with_nodes: harness.Place) -> None:
    """1458: names resolved only once pods were ready, and servers that wait for peers never are."""
    place = place_with_nodes
    unready = {"type": "Ready", "status": "False"}
    async with place.operator():
        await place.create_job(_job(Worker=2))
        await place.until_state("Running")
        for name in await place.pods():
            path = resources.PODS.path(place.namespace, name, "status")
            await place.api.patch(path, {"status": {"conditions": [unready]}})

        async def published() -> bool:
            slices = json.loads(place.kubectl("get", "endpointslices", "-ojson"))["items"]
            endpoints = [one for slice_ in slices for one in slice_["endpoints"] or ()]
            names_of_unready = {
                one["hostname"]
                for one in endpoints
                if one["conditions"]["ready"] and not one["conditions"]["serving"]
            }
            return names_of_unready == {"digits-worker-0", "digits-worker-1"}

        await waiting.until_async(published, "the Service names both pods, which are not ready")


async def test_a_dead_node_holds_nothing_up(
    place: harness.Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """2072, 2185: a pod on a dead node stayed Terminating, and the job hung for ever."""
    monkeypatch.setattr(cleanup, "PATIENCE", datetime.timedelta(seconds=2))
    job = _job(Worker=2)
    template = objects.template(nodeName="dead", terminationGracePeriodSeconds=1)
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"] = template
    async with place.operator():
        await _run(place, job)
        await place.end("digits-worker-0", 1)
        await place.until_pods("digits-worker-0", "digits-worker-1", attempt=2)


async def test_a_job_is_suspended_and_resumed_with_a_changed_template(
    place: harness.Place,
) -> None:
    """2239, 3666: a time to live broke suspension, and a resumed job was shown as suspended."""
    async with place.operator():
        await _run(place, _job({"ttlSecondsAfterFinished": 600}, Worker=1))
        place.change({"runPolicy": {"suspend": True}})
        await place.until_pods()
        await place.until_state("Suspended")
        template = objects.template(nodeSelector={"pool": "a"})
        place.change({"tfReplicaSpecs": {"Worker": {"template": template}}})
        place.change({"runPolicy": {"suspend": False}})
        [pod] = (await place.until_pods("digits-worker-0", attempt=2)).values()
        assert pod["spec"]["nodeSelector"] == {"pool": "a"}
        await place.until_state("Pending")
        await place.run_all()
        await place.until_state("Running")
