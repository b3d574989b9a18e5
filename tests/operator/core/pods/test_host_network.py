"""Jobs on the network of their nodes: each replica has a port that no other one has."""

import json
from typing import Any

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, load, names, types
from tfparallel_operator.core import decide, layout, observation, replicas
from tfparallel_operator.core.pods import cluster_spec, pod_builder
from tfparallel_operator.core.status import conditions

HOST = {"network": "Open", "hostNetwork": True}


def a_world(**roles: Any) -> builders.World:
    return builders.World(builders.a_job(trainer=True, spec=dict(HOST), **roles))


def test_each_replica_listens_on_another_port_and_peers_know_it() -> None:
    plan = layout.build(a_world(chief=1, worker=2, ps=2).job, first_port=12_000)
    builder = pod_builder.PodBuilder(plan, builders.SETTINGS, job_status.JobStatus(attempt=1))
    pods = [builder.build(replica) for replica in plan.all_replicas]
    ports = {}
    for manifest in pods:
        assert manifest["spec"]["hostNetwork"] is True
        assert manifest["spec"]["dnsPolicy"] == "ClusterFirstWithHostNet"
        [container] = manifest["spec"]["containers"]
        [port] = container["ports"]
        ports[manifest["metadata"]["name"]] = port["containerPort"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables["NCCL_SOCKET_IFNAME"].startswith("^lo,")
    assert sorted(ports.values()) == list(range(12_000, 12_005))
    cluster = json.loads(cluster_spec.tf_config(plan, plan.all_replicas[0]))["cluster"]
    addresses_of_cluster = [address for addresses in cluster.values() for address in addresses]
    assert {a.partition(".")[0]: int(a.rpartition(":")[2]) for a in addresses_of_cluster} == ports


def test_ports_of_others_stay_when_workers_come() -> None:
    document = builders.manifest(trainer=True, worker=2, ps=1, chief=1)
    document["spec"].update(HOST)
    document["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 8
    plan = layout.build(load.parse_job(document), first_port=10_000)
    assert plan.host_ports == job_status.HostPorts(first=10_000, count=4)
    server = replicas.Replica(types.Role.PS, 0)
    before = plan.address(server)
    document["spec"]["tfReplicaSpecs"]["Worker"]["replicas"] = 8
    grown = layout.build(load.parse_job(document), first_port=10_000)
    assert grown.address(server) == before
    last = replicas.Replica(types.Role.WORKER, 7)
    assert grown.host_port(last) == 10_009


def test_a_chief_alone_needs_one_port() -> None:
    plan = layout.build(a_world(chief=1).job, first_port=9_000)
    assert plan.host_ports == job_status.HostPorts(first=9_000, count=1)


def test_a_port_that_a_template_names_is_kept() -> None:
    document = builders.manifest(worker=2)
    document["spec"].update(HOST)
    template = document["spec"]["tfReplicaSpecs"]["Worker"]["template"]
    template["spec"]["containers"][0]["ports"] = [{"name": "tfjob-port", "containerPort": 4000}]
    plan = layout.build(load.parse_job(document), first_port=10_000)
    assert plan.port(replicas.Replica(types.Role.WORKER, 1)) == 4000


def test_a_job_waits_for_ports_and_keeps_those_that_it_has_got() -> None:
    world = a_world(worker=2)
    world.run_until_quiet()
    assert world.pods == {}
    assert builders.truth(world, names.ConditionType.CREATION_REFUSED) == ("True", "HostPortsTaken")
    assert [event.reason for event in world.events] == ["HostPortsTaken"]
    wake_at = world.decide().wake_at
    assert wake_at is not None and 0 < (wake_at - world.now).total_seconds() <= 10
    world.host_port = 11_000
    world.run_until_quiet()
    assert set(world.pods) == {"job-worker-0", "job-worker-1"}
    assert builders.truth(world, names.ConditionType.CREATION_REFUSED) == (
        "False",
        "ReplicasCreated",
    )
    world.host_port = 20_000
    world.exit("job-worker-1", 1).run_until_quiet()
    assert world.status.host_ports is not None
    assert (world.status.attempt, world.status.host_ports.first) == (2, 11_000)
    assert conditions.find(world.status, names.ConditionType.FAILED) is None


def test_a_namespace_that_has_all_its_ports_is_told_so() -> None:
    world = a_world(worker=2)
    environment = observation.Environment(host_ports_left=1)
    children = world.children()
    decided = decide.decide(world.layout(), children, environment, world.now, world.settings)
    [event] = decided.events
    assert event.reason == names.Reason.HOST_PORTS_TAKEN
    assert "needs 2 ports" in event.message and "1 are left" in event.message
    assert "jobs.hostPortsPerNamespace" in event.message


@pytest.mark.parametrize("reason", ["suspended", "refused", "restricted", "paused"])
def test_a_job_without_pods_that_creates_none_has_no_ports(reason: str) -> None:
    world = a_world(worker=2)
    world.host_port = 11_000
    world.run_until_quiet()
    assert world.status.host_ports is not None
    world.pods.clear()
    environment = observation.Environment()
    if reason == "suspended":
        world.edit(suspend=True)
    elif reason == "refused":
        refusal = observation.Refusal(names.Reason.ADMISSION_DENIED, "no", final=False)
        environment = observation.Environment(refusal=refusal)
    elif reason == "restricted":
        environment = observation.Environment(restriction="no")
    else:
        environment = observation.Environment(may_create=False)
    children = world.children()
    decided = decide.decide(world.layout(), children, environment, world.now, world.settings)
    assert decided.status.host_ports is None


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ({"hostNetwork": True}, "with hostNetwork, set network to Open"),
        ({"hostNetwork": True, "network": "Isolated"}, "set network to Open"),
        ({**HOST, "elastic": True}, "add Worker.maxReplicas"),
    ],
)
def test_what_does_not_fit_is_refused(spec: dict[str, Any], sentence: str) -> None:
    document = builders.manifest(trainer=True, worker=2)
    if spec.pop("elastic", False):
        document["spec"]["tfReplicaSpecs"]["Worker"]["minReplicas"] = 1
    document["spec"].update(spec)
    with pytest.raises(load.SpecError, match=sentence):
        load.parse_job(document)
