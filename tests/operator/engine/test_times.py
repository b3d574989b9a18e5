"""Times on a real API server: they fire on quiet jobs, and outlive the operator."""

import asyncio
import datetime

from testing.operator import harness, objects
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)


async def test_a_pending_deadline_fires_on_a_quiet_job(place: harness.Place) -> None:
    async with place.operator():
        await place.create_job(objects.job(runPolicy={"pendingDeadlineSeconds": 600}))
        await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        missing = {"reason": "ImagePullBackOff", "message": "no such image"}
        await place.kubelet("digits-worker-1", "Pending", waiting=missing)
        status = await place.until_reason("Worker", "ImagePullBackOff")
        limit = harness.seconds_since(status["attemptTime"]) + 3
        place.change({"runPolicy": {"pendingDeadlineSeconds": limit}})
        status = await place.until_state("Failed")
        failed = await place.condition("Failed")
        assert failed["reason"] == "PendingDeadlineExceeded"
        assert "ImagePullBackOff: no such image" in failed["message"]
        waited = _time(status["completionTime"]) - _time(status["attemptTime"])
        assert datetime.timedelta(seconds=limit) <= waited
        await place.until_pods()


async def test_a_deadline_outlives_the_operator(place: harness.Place) -> None:
    async with place.operator():
        await place.create_job(objects.job(runPolicy={"activeDeadlineSeconds": 600}))
        await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await place.run_all()
        started = (await place.until_state("Running"))["startTime"]
    place.change({"runPolicy": {"activeDeadlineSeconds": 1}})
    await asyncio.sleep(2)
    assert (await place.status())["state"] == "Running"
    async with place.operator():
        status = await place.until_state("Failed")
    assert status["startTime"] == started
    assert (await place.condition("Failed"))["reason"] == "DeadlineExceeded"


async def test_stages_of_the_clean_up_follow_the_end(place: harness.Place) -> None:
    stages = [{"when": "Succeeded", "afterSeconds": 2, "delete": "Job"}]
    async with place.operator():
        await place.create_job(objects.job(runPolicy={"cleanup": stages}))
        await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await place.run_all()
        await place.end("digits-chief-0", 0)
        await place.until_pods("digits-chief-0")

        await place.until_gone(resources.JOBS.path(place.namespace, "digits"))


async def test_a_pod_that_is_being_deleted_is_no_failed_one(place: harness.Place) -> None:
    job = objects.job(workers=0)
    template = objects.template(nodeName="far-away", terminationGracePeriodSeconds=600)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    job["spec"]["runPolicy"] = {"backoffLimit": 0}
    async with place.operator():
        await place.create_job(job)
        await place.until_pods("digits-chief-0")
        await place.run_all()
        await place.until_state("Running")
        place.kubectl("delete", "pod", "digits-chief-0", "--wait=false")
        status = await place.until_status(
            "the pod counts as terminating", lambda now: now["replicas"]["Chief"]["terminating"]
        )
        assert status["state"] == "Running"
        await place.end("digits-chief-0", 143)
        status = await place.until_status(
            "a disruption is counted", lambda now: now["restarts"]["disruption"] == 1
        )
        assert status["restarts"]["failure"] == 0
        place.kubectl("delete", "pod", "digits-chief-0", "--grace-period=0", "--force")
        await place.until_pods("digits-chief-0", attempt=2)


async def test_a_replica_out_of_memory_gets_more_of_it(place: harness.Place) -> None:
    container = {
        "name": "tensorflow",
        "image": "trainer:test",
        "resources": {"limits": {"memory": "1Gi"}},
    }
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(containers=[container])
    job["spec"]["runPolicy"] = {"outOfMemory": {"maxMemory": "8Gi"}}
    async with place.operator():
        await place.create_job(job)
        await place.until_pods("digits-chief-0")
        await place.run_all()
        killed = {"exitCode": 137, "reason": "OOMKilled"}
        await place.kubelet("digits-chief-0", "Failed", terminated=killed)
        [pod] = (await place.until_pods("digits-chief-0", attempt=2)).values()
        assert pod["spec"]["containers"][0]["resources"]["limits"]["memory"] == "2Gi"
        assert (await place.status())["restartCauses"] == {"OutOfMemory": 1}


async def test_training_that_stalls_is_run_again(place: harness.Place) -> None:
    async with place.operator():
        await place.create_job(objects.job(workers=0, runPolicy={"stallDeadlineSeconds": 3}))
        await place.until_pods("digits-chief-0")
        await place.run_all()
        await place.until_state("Running")
        await asyncio.sleep(1)
        now = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        report = {
            "apiVersion": names.API_VERSION,
            "kind": names.KIND,
            "metadata": {"name": "digits"},
            "status": {"progress": {"step": 7, "lastUpdateTime": now}},
        }
        path = resources.JOBS.path(place.namespace, "digits", "status")
        await place.api.apply(path, report, names.PROGRESS_FIELD_MANAGER)
        await place.until_pods("digits-chief-0", attempt=2)
        stalled = await place.condition("TrainingStalled")
        assert (stalled["status"], stalled["reason"]) == ("True", "StallDeadlineExceeded")
        assert "no progress after step 7 for 3 s" in stalled["message"]
        assert (await place.status())["restartCauses"] == {"Stall": 1}
