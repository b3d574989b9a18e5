"""Jobs with the label of a queue where there is no Kueue; `queues.py` has one."""

import json

from testing.operator import objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names


async def test_without_kueue_a_job_says_so_and_goes_on_without_the_label(
    namespace: Namespace,
) -> None:
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    async with namespace.operator():
        await namespace.create_job(job)
        message = (await namespace.until_refused(names.Reason.KUEUE_NOT_INSTALLED))["message"]
        assert "does not know Workloads of kueue.x-k8s.io" in message
        assert "the label kueue.x-k8s.io/queue-name=research needs" in message
        assert "Install Kueue, or remove the label" in message
        assert await namespace.pods() == {}
        unlabelled = {"metadata": {"labels": {names.LABEL_QUEUE: None}}}
        namespace.kubectl("patch", "tfpj", "digits", "--type=merge", "-p", json.dumps(unlabelled))
        await namespace.until_pods("digits-chief-0", "digits-worker-0", "digits-worker-1")
        await namespace.until_let_through()
