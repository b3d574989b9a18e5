"""Containers that ask for restarts in place: only the operator restarts a replica."""

import copy
from typing import Any

from testing.operator import builders
from tfparallel.job_source import cluster_checks
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import replicas

WORKER = replicas.Replica(types.Role.WORKER, 0)
RULES = [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [42]}}]
IN_PLACE = {"restartPolicy": "OnFailure", "restartPolicyRules": RULES}
POD = {
    "restartPolicy": "Always",
    "containers": [
        {"name": "tensorflow", "image": "i", "command": ["c"], **IN_PLACE},
        {"name": "logs", "image": "i", "restartPolicy": "Always"},
    ],
    "initContainers": [
        {"name": "fetch", "image": "i", **IN_PLACE},
        {"name": "proxy", "image": "i", "restartPolicy": "Always"},
        {"name": "agent", "image": "i", "restartPolicy": "Always", "restartPolicyRules": RULES},
    ],
}


def parse(pod: dict[str, Any]) -> types.TFParallelJob:
    document = builders.manifest(worker=1)
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": copy.deepcopy(pod)}
    return load.parse_job(document)


def test_a_pod_keeps_no_restarts_in_place_but_those_of_sidecars() -> None:
    job = parse(POD)
    spec = builders.a_pod(job, WORKER)["spec"]
    assert spec["restartPolicy"] == "Never"
    for container in spec["containers"]:
        assert not {*IN_PLACE} & {*container}
    init = {container["name"]: container for container in spec["initContainers"]}
    assert not {*IN_PLACE} & {*init["fetch"]}
    for name in ("proxy", "agent"):
        assert init[name]["restartPolicy"] == "Always"
        assert "restartPolicyRules" not in init[name]
    assert job.spec.tf_replica_specs[types.Role.WORKER].template == {"spec": POD}


def test_one_event_says_which_fields_count_for_nothing() -> None:
    world = builders.World(parse(POD))
    world.run_until_quiet()
    world.run()
    world.exit("job-worker-0", 1).run_until_quiet()
    [event] = [
        event for event in world.events if event.reason == names.Reason.RESTART_POLICY_IGNORED
    ]
    assert event.message == (
        "tfReplicaSpecs.Worker.template.spec.initContainers[0].restartPolicy and 5 more fields"
        " count for nothing: only the operator restarts replicas"
    )


def test_a_job_without_such_fields_has_no_event() -> None:
    pod = {**POD, "containers": [{"name": "tensorflow", "image": "i"}]}
    pod["initContainers"] = [{"name": "proxy", "image": "i", "restartPolicy": "Always"}]
    world = builders.World(parse(pod))
    world.run_until_quiet()
    assert not [
        event for event in world.events if event.reason == names.Reason.RESTART_POLICY_IGNORED
    ]


def test_validate_warns_of_each_field() -> None:
    warnings = cluster_checks.find_warnings(parse(POD))
    assert [".".join(map(str, warning.location[4:])) for warning in warnings] == [
        "spec.initContainers.0.restartPolicy",
        "spec.initContainers.0.restartPolicyRules",
        "spec.initContainers.2.restartPolicyRules",
        "spec.containers.0.restartPolicy",
        "spec.containers.0.restartPolicyRules",
        "spec.containers.1.restartPolicy",
    ]
    assert all("counts for nothing" in str(warning) for warning in warnings)
