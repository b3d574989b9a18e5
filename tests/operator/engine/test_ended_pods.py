"""Ends of pods on a real API server: the test writes the statuses that the kubelet writes."""

import pytest

from testing.operator import ends as examples
from testing.operator import objects
from testing.operator.namespaces import Namespace
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
