"""Times on a real API server: they fire on quiet jobs, and outlive the operator."""

import asyncio
import datetime

from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


async def test_a_pending_deadline_fires_on_a_quiet_job(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(runPolicy={"pendingDeadlineSeconds": 600}))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        missing = {"reason": "ImagePullBackOff", "message": "no such image"}
        await namespace.kubelet("digits-worker-1", "Pending", waiting=missing)
        status = await namespace.until_reason("Worker", "ImagePullBackOff")
        limit = namespaces.seconds_since(status["attemptTime"]) + 3
        namespace.change({"runPolicy": {"pendingDeadlineSeconds": limit}})
        status = await namespace.until_state("Failed")
        failed = await namespace.condition("Failed")
        assert failed["reason"] == "PendingDeadlineExceeded"
        assert "ImagePullBackOff: no such image" in failed["message"]
        waited = _time(status["completionTime"]) - _time(status["attemptTime"])
        assert datetime.timedelta(seconds=limit) <= waited
        await namespace.until_pods()


async def test_a_deadline_outlives_the_operator(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(runPolicy={"activeDeadlineSeconds": 600}))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await namespace.run_all()
        started = (await namespace.until_state("Running"))["startTime"]
    namespace.change({"runPolicy": {"activeDeadlineSeconds": 1}})
    await asyncio.sleep(2)
    assert (await namespace.status())["state"] == "Running"
    async with namespace.operator():
        status = await namespace.until_state("Failed")
    assert status["startTime"] == started
    assert (await namespace.condition("Failed"))["reason"] == "DeadlineExceeded"


async def test_stages_of_the_clean_up_follow_the_end(namespace: Namespace) -> None:
    stages = [{"when": "Succeeded", "afterSeconds": 2, "delete": "Job"}]
    async with namespace.operator():
        await namespace.create_job(objects.job(runPolicy={"cleanup": stages}))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await namespace.run_all()
        await namespace.end("digits-chief-0", 0)
        await namespace.until_pods("digits-chief-0")

        await namespace.until_gone(resources.JOBS.path(namespace.name, "digits"))


async def test_a_pod_that_is_being_deleted_is_no_failed_one(namespace: Namespace) -> None:
    job = objects.job(workers=0)
    template = objects.template(nodeName="far-away", terminationGracePeriodSeconds=600)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    job["spec"]["runPolicy"] = {"backoffLimit": 0}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_pods("digits-chief-0")
        await namespace.run_all()
        await namespace.until_state("Running")
        namespace.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
        status = await namespace.until_status(
            "the pod counts as terminating", lambda now: now["replicas"]["Chief"]["terminating"]
        )
        assert status["state"] == "Running"
        await namespace.end("digits-chief-0", 143)
        status = await namespace.until_status(
            "a disruption is counted", lambda now: now["restarts"]["disruption"] == 1
        )
        assert status["restarts"]["failure"] == 0
        namespace.kubectl("delete", "pod", "digits-chief-0", "--grace-period=0", "--force")
        await namespace.until_pods("digits-chief-0", attempt=2)


async def test_a_replica_out_of_memory_gets_more_of_it(namespace: Namespace) -> None:
    container = {
        "name": "tensorflow",
        "image": "trainer:test",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(containers=[container])
    job["spec"]["runPolicy"] = {"outOfMemory": {"maxMemory": "8Gi"}}
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_pods("digits-chief-0")
        await namespace.run_all()
        killed = {"exitCode": 137, "reason": "OOMKilled"}
        await namespace.kubelet("digits-chief-0", "Failed", terminated=killed)
        [pod] = (await namespace.until_pods("digits-chief-0", attempt=2)).values()
        assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2Gi"
        assert (await namespace.status())["restartCauses"] == {"OutOfMemory": 1}


async def test_training_that_stalls_is_run_again(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0, runPolicy={"stallDeadlineSeconds": 3}))
        await namespace.until_pods("digits-chief-0")
        await namespace.run_all()
        await namespace.until_state("Running")
        await asyncio.sleep(1)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        report = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "digits"},
            "status": {"progress": {"step": 7, "lastUpdateTime": now}},
        }
        path = resources.JOBS.path(namespace.name, "digits", "status")
        await namespace.api.apply(path, report, names.PROGRESS_FIELD_MANAGER)
        await namespace.until_pods("digits-chief-0", attempt=2)
        stalled = await namespace.condition("TrainingStalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "StallDeadlineExceeded")
        assert "no progress after step 7 for 3 s" in stalled["message"]
        assert (await namespace.status())["restartCauses"] == {"Stall": 1}
