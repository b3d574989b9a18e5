"""The calls that people of Kubeflow's TFJob make, written for our client, with real pods."""

import pytest

import tfparallel
from testing.e2e import jobs, kubectl_namespaces

pytestmark = [pytest.mark.timeout(1800)]

COUNT = "import time\nfor n in range(5): print('line', n, flush=True); time.sleep(1)"
STAY = "import time; print('up', flush=True); time.sleep(3600)"


def test_submit_wait_logs_of_a_replica_events_and_delete(
    namespace: kubectl_namespaces.KubectlNamespace,
) -> None:
    roles = {"Chief": jobs.script(COUNT), "Worker": jobs.script(STAY, replicas=2)}
    backend = tfparallel.Cluster(
        kubeconfig=str(namespace.cluster.kubeconfig), namespace=namespace.name
    )
    with tfparallel.TrainerClient(backend) as client:
        client.train(jobs.job("counted", tfReplicaSpecs=roles))
        states: list[str] = []
        client.wait_for_job_status(
            "counted",
            {"Running", "Succeeded"},
            timeout=kubectl_namespaces.JOB_SECONDS,
            callbacks=[lambda job: states.append(job.state)],
        )
        followed = list(client.get_job_logs("counted", follow=True))
        ended = client.wait_for_job_status("counted", timeout=kubectl_namespaces.JOB_SECONDS)

        assert states[0] == "Pending"
        assert followed == [f"line {number}" for number in range(5)]
        assert list(client.get_job_logs("counted", "chief-0", tail=1)) == ["line 4"]
        assert ended.is_finished
        reasons = {event.reason for event in client.get_job_events("counted")}
        assert {"JobStarted", "ChiefSucceeded"} <= reasons
        assert "Pulled" in reasons, "what the kubelet says of the pods belongs to the job"

        client.delete_job("counted")
        with pytest.raises(tfparallel.JobNotFound):
            client.get_job("counted")
    namespace.wait_gone("counted")
