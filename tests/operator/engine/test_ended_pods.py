"""Ends of pods on a real API server: the test writes the statuses that the kubelet writes."""

import datetime
from typing import Any

import pytest

from testing import waiting
from testing.operator import ends as examples
from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import resources
from tfparallel_operator.core import pod_ends

POD = "digits-chief-0"


async def _start(namespace: Namespace, attempt: int = 1) -> None:
    await namespace.until_pods(POD, attempt=attempt)
    await namespace.kubelet(POD, "Running", running={})
    await namespace.until_state("Running")


@pytest.mark.parametrize(
    "name",
    [
        "pod-disk-limit",
        "rejected-pressure",
        "rejected-shutdown",
        "node-pressure",
        "node-shutdown",
        "preemption",
        "container-unknown",
        "runtime-unknown",
        "exit-asked",
        "restarted-in-place",
    ],
)
async def test_the_end_of_a_pod_is_counted_and_told(namespace: Namespace, name: str) -> None:
    [end] = [end for end in pod_ends.TABLE if end.name == name]
    status = examples.EXAMPLES[name][0]
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await _start(namespace)
        await namespace.write_status(POD, status)
        after = await namespace.until_status(
            "a second attempt", lambda job: job.get("attempt") == 2
        )
        bounded = end.cause is None
        assert after["restarts"] == {"failure": int(bounded), "disruption": int(not bounded)}
        message = (await namespace.condition("Restarting"))["message"]
        assert message.startswith(f"{POD} {end.phrase}")
        assert status.get("message", "").strip().rstrip(".") in message
        assert ("after 10 s" in message) == name.startswith("rejected")


async def test_a_pod_that_passes_its_own_limit_each_time_fails_the_job(
    namespace: Namespace,
) -> None:
    [status] = examples.EXAMPLES["pod-disk-limit"]
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0, runPolicy={"backoffLimit": 1}))
        for attempt in (1, 2):
            await _start(namespace, attempt)
            await namespace.write_status(POD, status)
        await namespace.until_state("Failed")
        failed = await namespace.condition("Failed")
        assert failed["reason"] == "BackoffLimitExceeded"
        assert "Pod ephemeral local storage usage exceeds the total limit" in failed["message"]
        assert "ephemeral-storage of the role's containers" in failed["message"]


async def test_a_pod_that_is_deleted_each_time_waits_for_longer(namespace: Namespace) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        for attempt in (1, 2):
            await _start(namespace, attempt)
            namespace.kubectl("delete", "pod", POD, "--grace-period=0", "--force")
        after = await namespace.until_status("a third attempt", lambda job: job.get("attempt") == 3)
        assert after["restartsSinceProgress"] == 2
        restarted = await namespace.condition("Restarting")
        assert "after 10 s" in restarted["message"]
        begins_at, restarted_at = map(
            _time, (after["attemptTime"], restarted["lastTransitionTime"])
        )
        assert begins_at - restarted_at == datetime.timedelta(seconds=10)


@pytest.mark.parametrize(
    "status",
    [
        examples.EXAMPLES["node-pressure"][1],
        examples.EXAMPLES["node-shutdown"][1],
        examples.EXAMPLES["preemption"][1],
    ],
    ids=["pressure", "shutdown", "preemption"],
)
async def test_a_chief_that_was_ended_and_exits_with_0_has_not_finished(
    namespace: Namespace, status: dict[str, Any]
) -> None:
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await _start(namespace)
        await namespace.write_status(POD, status)
        after = await namespace.until_status(
            "a second attempt", lambda job: job.get("attempt") == 2
        )
        assert after["restarts"] == {"failure": 0, "disruption": 1}
        await _start(namespace, 2)
        await namespace.end(POD, 0)
        await namespace.until_state("Succeeded")


async def test_the_kubelet_restarts_no_container_in_place(namespace: Namespace) -> None:
    rules = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [3]}}]
    in_place = {"image": "trainer:test", "restartPolicy": "OnFailure", "restartPolicyRules": rules}
    job = objects.job(workers=0)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = objects.template(
        containers=[{"name": names.CONTAINER, **in_place}, {"name": "logs", **in_place}],
        initContainers=[
            {"name": "fetch", **in_place},
            {"name": "proxy", "image": "x", "restartPolicy": "Always"},
        ],
    )
    async with namespace.operator():
        await namespace.create_job(job)
        pod = (await namespace.until_pods(POD))[POD]["spec"]
        assert pod["restartPolicy"] == "Never"
        containers = {
            container["name"]: container
            for container in (*pod["containers"], *pod["initContainers"])
        }
        assert containers.pop("proxy")["restartPolicy"] == "Always"
        for container in containers.values():
            assert not {"restartPolicy", "restartPolicyRules"} & {*container}
        await _start(namespace)

        async def event_is_written() -> bool:
            events = await namespace.api.list(resources.EVENTS, namespace.name)
            return "RestartPolicyIgnored" in {event["reason"] for event in events.items}

        await waiting.until_async(event_is_written, "the Event")


async def test_a_container_that_was_restarted_in_place_has_ended(namespace: Namespace) -> None:
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    again = {"name": names.CONTAINER, "state": {"running": {}}, "lastState": ended}
    async with namespace.operator():
        await namespace.create_job(objects.job(workers=0))
        await _start(namespace)
        status = {"phase": "Running", "containerStatuses": [{**again, "restartCount": 1}]}
        await namespace.write_status(POD, status)
        await namespace.until_state("Succeeded")


def _time(text: str) -> datetime.datetime:
    return datetime.datetime.fromisoformat(text)
