"""Nodes on which replicas are lost again and again: counted, avoided, released."""

import datetime
import re
from typing import Any

import pytest

from testing import paths
from testing.operator import agent_world, builders
from tfparallel_operator.api import load, names, types
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.core.pods import avoided_nodes, pod_builder
from tfparallel_trainer.contract import exits

WORDS = (
    "Unschedulable: 0/3 nodes are available: 1 node(s) didn't match Pod's node affinity/selector,"
    " 2 Insufficient nvidia.com/gpu."
)


def place(world: builders.World, **nodes: str) -> None:
    """Let all pods run: those named on these nodes, each other one on its own."""
    for name in world.pods:
        replica = name.removeprefix("job-").replace("-", "_")
        world.update(name, node=nodes.get(replica, f"node-of-{replica}"))
    world.run().run_until_quiet()


def lose(world: builders.World, name: str, code: int = exits.Exit.DEVICE_FAILED) -> None:
    """End a replica, and let the pauses of its restart pass."""
    world.exit(name, code).run_until_quiet()
    world.advance(300).run_until_quiet()


def wait(world: builders.World, name: str, message: str = WORDS) -> None:
    """Let the scheduler say that it finds no node for a pod."""
    world.update(name, waiting=message, unschedulable_since=world.now).run_until_quiet()


def avoided(world: builders.World, name: str = "job-worker-0") -> list[str]:
    """Return the nodes that the newest pod of this name avoids."""
    pod = [manifest for manifest in world.manifests if manifest["metadata"]["name"] == name][-1]
    required = avoided_nodes.exclude(pod["spec"], ())["nodeAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    [term] = required["nodeSelectorTerms"]
    assert {(field["key"], field["operator"]) for field in term["matchFields"]} == {
        ("metadata.name", "NotIn")
    }
    return [node for field in term["matchFields"] for node in field["values"]]


def has_affinity(world: builders.World, name: str = "job-worker-0") -> bool:
    """Whether the newest pod of this name avoids nodes."""
    pod = [manifest for manifest in world.manifests if manifest["metadata"]["name"] == name][-1]
    return "affinity" in pod["spec"]


def reasons(world: builders.World) -> list[str]:
    return [event.reason for event in world.events if event.reason.startswith("Node")]


def failing_twice(**job: Any) -> builders.World:
    """Return a job that has lost a worker twice on one node, and whose new pods wait."""
    world = builders.a_world(**({"worker": 2} | job))
    for _ in range(2):
        place(world, worker_1="bad")
        lose(world, "job-worker-1")
    return world


def test_from_the_second_loss_on_new_pods_avoid_the_node() -> None:
    world = builders.a_world(worker=2)
    place(world, worker_1="bad")
    lose(world, "job-worker-1")
    assert world.status.node_losses == {"bad": 1}
    assert not has_affinity(world)
    assert reasons(world) == []
    place(world, worker_1="bad")
    lose(world, "job-worker-1")
    assert world.status.node_losses == {"bad": 2}
    for name in ("job-worker-0", "job-worker-1"):
        assert avoided(world, name) == ["bad"]
    [event] = [event for event in world.events if event.reason == names.Reason.NODE_AVOIDED]
    assert "lost on node bad 2 times" in event.message
    assert "`kubectl describe node bad`" in event.message


def test_the_count_is_written_before_the_pods_that_it_changes() -> None:
    world = builders.a_world(worker=1)
    for _ in range(2):
        place(world, worker_0="bad")
        world.exit("job-worker-0", exits.Exit.DEVICE_FAILED)
        world.step(writes=1)  # The operator dies after the status.
        assert world.status.node_losses["bad"] == world.status.attempt - 1
        world.run_until_quiet()
        world.advance(300).run_until_quiet()
    assert avoided(world) == ["bad"]
    assert world.status.node_losses == {"bad": 2}


@pytest.mark.parametrize("code", [1, exits.Exit.USER_ERROR, exits.Exit.PEER_LOST, 137])
def test_an_exit_of_the_program_does_not_count(code: int) -> None:
    world = builders.a_world(worker=2)
    place(world, worker_1="good")
    lose(world, "job-worker-1", code)
    assert world.status.node_losses == {}


def test_peers_of_a_lost_replica_do_not_count_for_their_nodes() -> None:
    world = builders.a_world(worker=3)
    place(world, worker_1="bad")
    for peer in ("job-worker-0", "job-worker-2"):
        world.exit(peer, exits.Exit.PEER_LOST)
    lose(world, "job-worker-1")
    assert world.status.node_losses == {"bad": 1}


def test_a_node_counts_once_for_a_restart_whichever_pods_it_takes() -> None:
    world = builders.a_world(worker=3)
    place(world, worker_0="dead", worker_1="dead")
    lost = {"phase": observation.Phase.FAILED, "disrupted": True}
    for name in ("job-worker-0", "job-worker-1"):
        world.update(name, reason="DeletionByTaintManager", **lost)
    world.run_until_quiet()
    assert world.status.node_losses == {"dead": 1}


def test_a_dead_node_counts_that_the_cluster_reports_after_the_peers_have_ended() -> None:
    world = builders.a_world(worker=2)
    place(world, worker_1="dead")
    world.exit("job-worker-0", exits.Exit.PEER_LOST)
    world.advance(60).step()
    assert world.status.attempt == 2
    assert world.status.node_losses == {}
    world.update("job-worker-1", disrupted=True, reason="DeletionByTaintManager")
    for _ in range(3):
        world.step()
    assert world.status.node_losses == {"dead": 1}
    assert world.status.restarts.disruption == 1


def test_at_most_three_nodes_are_avoided_those_with_most_losses() -> None:
    world = builders.a_world(worker=1, run_policy={"backoffLimit": 100})
    for node in ("a", "b", "c", "d", "d"):
        for _ in range(2):
            place(world, worker_0=node)
            lose(world, "job-worker-0")
    assert world.status.node_losses == {"a": 2, "b": 2, "c": 2, "d": 4}
    assert avoided(world) == ["d", "a", "b"]


def test_a_status_has_a_bounded_number_of_nodes() -> None:
    world = builders.a_world(worker=1, run_policy={"backoffLimit": 100})
    for number in range(40):
        place(world, worker_0=f"node-{number:02}")
        lose(world, "job-worker-0")
    assert len(world.status.node_losses) == 32
    assert "node-39" in world.status.node_losses


def test_nodes_are_released_if_a_pod_finds_no_other_for_a_minute() -> None:
    world = failing_twice()
    attempt, restarted = world.status.attempt, world.status.restarts
    world.update("job-worker-0", node="good").run("job-worker-0")
    wait(world, "job-worker-1")
    assert "no other node for 60 s" in world.condition(names.ConditionType.RUNNING).message
    assert world.decide().wake_at == world.now + datetime.timedelta(seconds=60)
    world.advance(59).run_until_quiet()
    assert has_affinity(world, "job-worker-1")
    world.advance(1).run_until_quiet()
    assert not has_affinity(world, "job-worker-1")
    assert world.status.node_losses == {}
    assert reasons(world) == [names.Reason.NODE_AVOIDED, names.Reason.NODE_RELEASED]
    # Nothing has run in the pod, so nothing restarts, and its peers wait on.
    assert (world.status.attempt, world.status.restarts) == (attempt, restarted)
    assert world.pods["job-worker-0"].replica_attempt == 0
    place(world)
    assert world.status.state == names.State.RUNNING


def test_the_operator_may_die_after_each_write_of_a_release() -> None:
    world = failing_twice()
    wait(world, "job-worker-0")
    wait(world, "job-worker-1")
    world.advance(60)
    while world.step(writes=1):
        world.reap()
    assert not has_affinity(world)
    assert len(world.pods) == 2
    assert [event.reason for event in world.events].count(names.Reason.NODE_RELEASED) == 1


def test_a_cluster_of_one_node_gets_its_job_back() -> None:
    world = builders.a_world(worker=2)
    for _ in range(2):
        place(world, worker_0="only", worker_1="only")
        lose(world, "job-worker-1")
    for name in tuple(world.pods):
        wait(world, name, "Unschedulable: 1 node(s) didn't match Pod's node affinity/selector.")
    world.advance(60).run_until_quiet()
    place(world, worker_0="only", worker_1="only")
    assert world.status.state == names.State.RUNNING


def test_a_pod_that_waits_for_room_keeps_avoiding_for_ten_minutes() -> None:
    world = failing_twice()
    wait(world, "job-worker-1", "Unschedulable: 0/3 nodes are available: 3 Insufficient cpu.")
    world.advance(599).run_until_quiet()
    assert reasons(world) == [names.Reason.NODE_AVOIDED]
    world.advance(1).run_until_quiet()
    assert reasons(world) == [names.Reason.NODE_AVOIDED, names.Reason.NODE_RELEASED]


def test_nodes_are_released_before_a_pending_deadline_fails_the_job() -> None:
    world = failing_twice()
    world.edit(pending_deadline_seconds=310).run_until_quiet()
    world.advance(10).run_until_quiet()
    assert reasons(world) == [names.Reason.NODE_AVOIDED, names.Reason.NODE_RELEASED]
    assert world.status.attempt_time == world.now
    world.advance(309).run_until_quiet()
    assert world.status.state != names.State.FAILED
    world.advance(1).run_until_quiet()
    assert world.status.state == names.State.FAILED


def test_a_loss_decides_before_a_release() -> None:
    world = failing_twice()
    world.update("job-worker-0", node="good").run("job-worker-0")
    wait(world, "job-worker-1")
    world.advance(60).exit("job-worker-0", 1)
    world.step()
    assert world.status.node_losses == {"bad": 2}


def test_a_user_may_turn_it_off_and_gets_pods_that_wait_at_once() -> None:
    world = failing_twice()
    wait(world, "job-worker-1")
    world.edit_spec(scheduling=types.Scheduling(avoid_failed_nodes=False)).run_until_quiet()
    assert not has_affinity(world, "job-worker-1")
    for _ in range(2):
        place(world, worker_1="bad")
        lose(world, "job-worker-1", 71)
    assert world.status.node_losses == {}


def test_turning_it_off_deletes_no_pod_that_waits_to_restart_in_place() -> None:
    world = agent_world.AgentWorld(builders.a_job(trainer=True, worker=2))
    world.run_until_quiet()
    place(world)
    losses = {"node_losses": {"bad": 2}}
    world.job = world.job.model_copy(update={"status": world.status.model_copy(update=losses)})
    world.exit("job-worker-0", 137)
    world.end("job-worker-1", exits.Exit.PEER_LOST)
    world.step()
    world.edit_spec(scheduling=types.Scheduling(avoid_failed_nodes=False))
    world.step()
    assert world.status.node_losses == {}
    assert not world.pods["job-worker-1"].deleting


def test_a_resumed_job_begins_without_counts() -> None:
    world = failing_twice()
    world.edit(suspend=True).run_until_quiet()
    world.edit(suspend=False).run_until_quiet()
    assert world.status.node_losses == {}
    assert not has_affinity(world)


def test_a_worker_of_servers_avoids_the_node_alone() -> None:
    world = builders.a_world(chief=1, worker=2, ps=1)
    for _ in range(2):
        place(world, worker_1="bad", chief_0="bad")
        lose(world, "job-worker-1")
    assert avoided(world, "job-worker-1") == ["bad"]
    assert not has_affinity(world, "job-chief-0")
    assert world.pods["job-chief-0"].node == "bad"
    assert not world.pods["job-chief-0"].deleting


def test_pods_on_an_avoided_node_do_not_restart_in_place() -> None:
    job = builders.a_job(trainer=True, worker=3)
    world = agent_world.AgentWorld(job)
    world.run_until_quiet()
    for _ in range(2):
        place(world, worker_0="bad", worker_1="bad", worker_2="good")
        world.advance(700)  # A restart after a long run does not pause.
        for name in ("job-worker-0", "job-worker-2"):
            world.end(name, exits.Exit.PEER_LOST)
        world.exit("job-worker-1", exits.Exit.DEVICE_FAILED)
        uids = {name: pod.uid for name, pod in world.pods.items()}
        world.step()
        deleted = {name for name, pod in world.pods.items() if pod.deleting}
        world.run_until_quiet()
        world.advance(300).run_until_quiet()
    assert deleted == {"job-worker-0", "job-worker-1"}
    assert world.pods["job-worker-2"].uid == uids["job-worker-2"]
    assert avoided(world) == ["bad"]


def exclude(affinity: dict[str, Any] | None, **pod_spec: Any) -> Any:
    """Return the affinity of a pod of this affinity that avoids two nodes."""
    spec = {"containers": [{"name": "tensorflow", "image": "i"}], "affinity": affinity, **pod_spec}
    document = builders.manifest(worker=1)
    document["spec"]["tfReplicaSpecs"]["Worker"]["template"] = {"spec": spec}
    world = builders.World(load.parse_job(document))
    status = world.status.model_copy(update={"attempt": 1, "node_losses": {"a": 3, "b": 2, "c": 1}})
    builder = pod_builder.PodBuilder(world.layout(), builders.SETTINGS, status)
    worker = replicas.Replica(types.Role.WORKER, 0)
    return builder.build(worker)["spec"].get("affinity")


FIELDS = [
    {"key": "metadata.name", "operator": "NotIn", "values": ["a"]},
    {"key": "metadata.name", "operator": "NotIn", "values": ["b"]},
]
"""The API server accepts one value for each requirement of a field."""


def required(*terms: dict[str, Any]) -> dict[str, Any]:
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [*terms]}}


def test_each_term_of_the_users_affinity_gets_the_nodes() -> None:
    zone = [{"key": "zone", "operator": "In", "values": ["x"]}]
    host = [{"key": "metadata.name", "operator": "In", "values": ["a"]}]
    preferred = [{"weight": 1, "preference": {"matchExpressions": zone}}]
    affinity = {
        "podAffinity": {},
        "nodeAffinity": {
            **required({"matchExpressions": zone}, {"matchFields": host}, {}),
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    }
    assert exclude(affinity) == {
        "podAffinity": {},
        "nodeAffinity": {
            **required(
                {"matchExpressions": zone, "matchFields": FIELDS},
                {"matchFields": [*host, *FIELDS]},
                {},
            ),
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
    }


def test_a_pod_without_affinity_gets_a_term() -> None:
    assert exclude(None) == {"nodeAffinity": required({"matchFields": FIELDS})}


def test_a_pod_whose_template_names_its_node_gets_none() -> None:
    assert not exclude(None, nodeName="a")


def test_the_page_has_the_words_of_the_event() -> None:
    page = (paths.PAGES / "explanation/restarts.md").read_text(encoding="utf-8")
    [shown] = re.findall(r"<!-- node avoided -->\n```\n(.*?)\n```", page)
    world = builders.a_world(worker=2)
    for _ in range(2):
        place(world, worker_1="gpu-7")
        lose(world, "job-worker-1")
    [event] = [event for event in world.events if event.reason == names.Reason.NODE_AVOIDED]
    assert shown == f"{event.reason}: {event.message}"
