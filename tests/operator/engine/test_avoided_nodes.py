"""Nodes that a job avoids, on a real API server."""

import datetime
import json

import pytest

from testing import waiting
from testing.cluster import handle
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import resources
from tfparallel_operator.core.life import failed_nodes

POD = "digits-chief-0"


async def test_the_api_server_accepts_pods_that_avoid_nodes_and_they_are_released(
    namespace: Namespace,
) -> None:
    zone = {"key": "zone", "operator": "In", "values": ["x"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    job = objects.job(workers=0)
    template = objects.template(affinity=affinity)
    job["spec"]["tfReplicaSpecs"]["Chief"]["template"] = template
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.run_pods(POD)
        path = resources.JOBS.path(namespace.name, "digits", "status")
        await namespace.api.patch(path, {"status": {"nodeLosses": {"a": 2, "b": 3}}})
        await namespace.end(POD, 1)
        pods = await namespace.until_pods(POD, attempt=2)
        required = pods[POD]["spec"]["affinity"]["nodeAffinity"]
        [first, second] = required["requiredDuringSchedulingIgnoredDuringExecution"][
            "nodeSelectorTerms"
        ]
        assert first == second
        assert first["matchExpressions"] == [zone]
        assert first["matchFields"] == [
            {"key": "metadata.name", "operator": "NotIn", "values": [node]} for node in ("b", "a")
        ]
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "1 node(s) didn't match Pod's node affinity/selector",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        await namespace.write_status(POD, {"phase": "Pending", "conditions": [condition]})
        status = await namespace.until_status(
            "the nodes are released", lambda job: not job.get("nodeLosses")
        )
        assert status["replicaAttempts"] == {"chief-0": 1}
        assert status["attempt"] == 2
        first_uid = pods[POD]["metadata"]["uid"]
        await waiting.until_async(
            namespace.pods,
            "the pod that avoids no node",
            when=lambda pods: POD in pods and pods[POD]["metadata"]["uid"] != first_uid,
        )
        await namespace.run_pods(POD, attempt=2)
        spec = (await namespace.pods())[POD]["spec"]
        assert spec["affinity"] == affinity


@pytest.mark.parametrize("cluster", ["gang_scheduling_cluster"], indirect=True, scope="session")
async def test_a_gang_of_kubernetes_gets_its_only_node_back(
    cluster: handle.Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(failed_nodes, "_PATIENCE", datetime.timedelta(seconds=1))
    job = objects.job(workers=0, scheduling={"gang": "Kubernetes"})
    worker = {"replicas": 2, "devices": 2, "template": objects.template()}
    job["spec"]["tfReplicaSpecs"] = {"Worker": worker}
    async with namespaces.open_in(cluster) as namespace, namespace.operator():
        [node] = json.loads(namespace.kubectl("get", "nodes", "-o", "json"))["items"]
        await namespace.create_job(job)
        await namespace.until_state("Running")
        path = resources.JOBS.path(namespace.name, "digits", "status")
        losses = {node["metadata"]["name"]: 2}
        await namespace.api.patch(path, {"status": {"nodeLosses": losses}})
        namespace.kubectl("delete", "pod", "digits-worker-1", "--force", "--grace-period=0")
        await namespace.until_status("an attempt", lambda status: status.get("attempt") == 2)
        status = await namespace.until_state("Running")
        assert "nodeLosses" not in status
        assert status["replicaAttempts"] == {"worker-0": 1, "worker-1": 1}
        assert (status["attempt"], status["restarts"]["failure"]) == (2, 0)
