"""Jobs with the label of a queue where there is no Kueue; `queues.py` has one."""

import json

from testing.operator import harness, objects
from tfparallel_operator.api import names


async def test_without_kueue_a_job_says_so_and_goes_on_without_the_label(
    place: harness.Place,
) -> None:
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    async with place.operator():
        await place.create_job(job)
        message = (await place.until_refused(names.Reason.KUEUE_NOT_INSTALLED))["message"]
        assert "does not know Workloads of kueue.x-k8s.io" in message
        assert "the label kueue.x-k8s.io/queue-name=research needs" in message
        assert "Install Kueue, or remove the label" in message
        assert await place.pods() == {}
        unlabelled = {"metadata": {"labels": {names.LABEL_QUEUE: None}}}
        place.kubectl("patch", "tfpj", "digits", "--type=merge", "-p", json.dumps(unlabelled))
        await place.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await place.until_let_through()
