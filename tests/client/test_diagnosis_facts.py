"""What a diagnosis is told of a job: objects as they are read, logs, and operators."""

import dataclasses
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest

from testing.operator import symptoms
from tfparallel import errors, models
from tfparallel.backends.cluster import access, cluster_backend, objects
from tfparallel.diagnosis import findings, job_diagnosis
from tfparallel_operator.api_server import client, credentials, lists, resources
from tfparallel_operator.api_server import errors as api_errors
from tfparallel_operator.core import pending_reasons


class LoggedBackend(symptoms.Backend):
    """A backend whose replicas have logs."""

    def __init__(self, facts: findings.JobSnapshot) -> None:
        super().__init__(facts)
        self.read: list[str] = []
        self.gone: Sequence[str] = ()
        self.looked = False
        self.lines: Sequence[str] = ()

    async def list_operators(self) -> Sequence[models.Operator] | None:
        self.looked = True
        return []

    async def read_logs(
        self, replica: models.Replica, _: models.Job, *, follow: bool, tail: int | None
    ) -> AsyncIterator[str]:
        assert not follow
        assert tail is not None
        if replica.name in self.gone:
            raise errors.Failure(f"pods {replica.pod!r} not found")
        self.read.append(replica.name)
        for line in self.lines:
            yield line
        yield f"[{replica.name}] error: it broke"
        raise errors.Failure("the node does not answer")


async def test_the_log_of_the_replica_that_failed_first_is_read() -> None:
    cluster = LoggedBackend(symptoms.failed())
    diagnosis = await job_diagnosis.diagnose_job(cluster, "digits")  # type: ignore[arg-type]
    assert cluster.read == ["chief-0"]
    assert (
        findings.Evidence(findings.EvidenceSource.LOG, "chief-0: error: it broke")
        in diagnosis.evidence
    )
    assert not cluster.looked


async def test_the_next_that_failed_speaks_if_the_first_has_no_log() -> None:
    chief = models.Replica("chief-0", "digits-chief-0", 1, "Failed", exit_code=65)
    worker = models.Replica("worker-0", "digits-worker-0", 1, "Failed", exit_code=76)
    cluster = LoggedBackend(dataclasses.replace(symptoms.failed(), replicas=[chief, worker]))
    cluster.gone = ("chief-0",)
    diagnosis = await job_diagnosis.diagnose_job(cluster, "digits")  # type: ignore[arg-type]
    assert cluster.read == ["worker-0"]
    assert (
        findings.Evidence(findings.EvidenceSource.LOG, "worker-0: error: it broke")
        in diagnosis.evidence
    )


async def test_the_first_lines_of_tensorflow_are_no_evidence() -> None:
    cluster = LoggedBackend(symptoms.failed())
    cluster.lines = (
        "one line of the module",
        "WARNING: All log messages before absl::InitializeLog() is called are written to STDERR",
        "I0000 00:00:1795495117.2 1 port.cc:153] oneDNN custom operations are on. You may see",
    )
    diagnosis = await job_diagnosis.diagnose_job(cluster, "digits")  # type: ignore[arg-type]
    lines = [item.text for item in diagnosis.evidence if item.source is findings.EvidenceSource.LOG]
    assert lines == ["chief-0: one line of the module", "chief-0: error: it broke"]


async def test_only_of_a_job_that_nobody_has_seen_the_operator_is_looked_for() -> None:
    cluster = LoggedBackend(symptoms.unseen(None))
    diagnosis = await job_diagnosis.diagnose_job(cluster, "digits")  # type: ignore[arg-type]
    assert cluster.looked
    assert "it is not installed in this cluster" in diagnosis.sentence


def test_the_claims_of_a_job_are_those_that_its_manifest_names() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "photos"}}
    spec = {
        "trainer": {"checkpoint": {"claim": "results"}, "volumes": [{"claim": "digits-data"}, {}]},
        "tfReplicaSpecs": {"Worker": {"template": {"spec": {"volumes": [volume, {}]}}}, "PS": {}},
        "volumeClaimTemplates": [{"metadata": {"name": "results"}}],
    }
    job = dataclasses.replace(symptoms.training().job, manifest={"spec": spec})
    assert objects.claim_names(job) == {"digits-results", "digits-data", "photos"}


def test_a_claim_is_read_as_the_api_server_has_it() -> None:
    body = {
        "metadata": {"name": "digits"},
        "spec": {"accessModes": ["ReadWriteMany"]},
        "status": {"phase": "Pending"},
    }
    assert pending_reasons.parse_claim(body) == models.Claim(
        "digits", "Pending", None, ("ReadWriteMany",)
    )


def test_a_pod_that_was_evicted_has_the_kubelets_words_and_its_limit() -> None:
    limits = {"limits": {"memory": "2Gi"}}
    body = {
        "metadata": {"name": "digits-worker-0", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"containers": [{"name": "proxy"}, {"name": "tensorflow", "resources": limits}]},
        "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on x."},
    }
    pod = objects.parse_pod(body)
    assert (pod.reason, pod.memory_limit) == ("Evicted: The node was low on x.", "2Gi")


def test_a_pod_that_an_init_container_holds_up_has_its_words_and_its_log() -> None:
    waits_for_init = {"waiting": {"reason": "PodInitializing"}}
    trains: dict[str, Any] = {"name": "tensorflow", "state": waits_for_init}
    source: dict[str, Any] = {"name": "tfparallel-source"}
    body = {
        "metadata": {"name": "digits-worker-0", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "status": {"initContainerStatuses": [source], "containerStatuses": [trains]},
    }
    source["state"] = {"waiting": {"reason": "ErrImagePull", "message": "gone"}}
    pod = objects.parse_pod(body)
    assert (pod.reason, pod.exit_code, pod.log_container) == (
        "ErrImagePull: gone",
        None,
        "tensorflow",
    )
    source["state"] = {"terminated": {"exitCode": 78, "reason": "Error"}}
    pod = objects.parse_pod(body)
    assert (pod.reason, pod.exit_code, pod.log_container) == ("Error", 78, "tfparallel-source")
    trains["state"] = {"running": {"startedAt": "2026-01-01T00:00:01Z"}}
    assert objects.parse_pod(body).log_container == "tensorflow"


def test_an_operator_is_read_from_its_deployment() -> None:
    env = [{"name": "TFPARALLEL_WATCH_NAMESPACES", "value": "ml,team"}, {"name": "POD_NAME"}]
    body = {
        "metadata": {"namespace": "tfparallel-system", "name": "operator"},
        "spec": {"replicas": 2, "template": {"spec": {"containers": [{"env": env}]}}},
        "status": {"readyReplicas": 1},
    }
    expected = models.Operator("tfparallel-system", "operator", 2, 1, ("ml", "team"))
    assert objects.parse_operator(body) == expected


@pytest.mark.parametrize(
    ("forbidden", "installed", "expected"),
    [
        ((), ["tfparallel-system"], ["operator"]),
        ((), [], []),
        ((None,), ["tfparallel-system"], ["operator"]),
        ((None,), [], None),
        ((None, "tfparallel-system"), ["tfparallel-system"], None),
    ],
)
async def test_operators_are_looked_for_where_rights_allow(
    forbidden: Sequence[str | None],
    installed: Sequence[str],
    expected: Sequence[str] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def list_deployments(
        _: client.Client, __: resources.Resource, scope: str | None, ___: str
    ) -> lists.Listing:
        if scope in forbidden:
            raise api_errors.Refused("deployments is forbidden", status=403)
        bodies = [
            {
                "metadata": {"namespace": namespace, "name": "operator"},
                "spec": {"template": {"spec": {"containers": [{}]}}},
            }
            for namespace in installed
        ]
        return lists.Listing(tuple(bodies), "1")

    monkeypatch.setattr(client.Client, "list", list_deployments)
    server = credentials.Access("https://none", tls=False, token=credentials.Token(str))
    context = access.Context(name="", namespace="team", access=server)
    operators = await cluster_backend.ClusterBackend(context).list_operators()
    assert (None if operators is None else [operator.name for operator in operators]) == expected
