"""Ports of nodes: no two jobs have the same, also after a restart of the operator."""

from typing import Any

import pytest

from testing import waiting
from testing.operator import namespaces, objects
from testing.operator.namespaces import Namespace
from tfparallel_operator.api_server import errors
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.engine.observe import host_port_allocator, jobs, records
from tfparallel_operator.engine.workqueue import queue

HOST = {"network": "Open", "hostNetwork": True}


def _body(name: str, version: int = 1, **status: Any) -> dict[str, Any]:
    metadata = {"namespace": "ns", "name": name, "uid": name, "resourceVersion": str(version)}
    return {"metadata": metadata, "status": status}


def _owner(name: str) -> records.Owner:
    return records.Owner("ns", name, name)


def _known(*bodies: dict[str, Any]) -> jobs.Jobs:
    store = jobs.Jobs(queue.Queue())
    for body in bodies:
        store.apply_event("ADDED", body)
    return store


def test_ports_that_are_promised_are_not_promised_again() -> None:
    store = _known(_body("a"), _body("b"), _body("c"))
    ports = host_port_allocator.HostPortAllocator(store)
    assert [ports.find(_owner(uid), 3) for uid in ("a", "b", "a")] == [10_000, 10_003, 10_000]
    store.apply_event("DELETED", _body("a", 2))
    assert ports.find(_owner("c"), 4) == 10_006
    assert host_port_allocator.HostPortAllocator(store).find(_owner("c"), 3) == 10_000


def test_a_gap_is_used_and_what_ended_gives_its_ports_back() -> None:
    first = _body("a", hostPorts={"first": 10_000, "count": 5})
    second = _body("b", hostPorts={"first": 10_010, "count": 5})
    ended = _body("c", hostPorts={"first": 10_015, "count": 5}, state="Succeeded")
    ports = host_port_allocator.HostPortAllocator(
        _known(first, second, ended, _body("d"), _body("e"))
    )
    assert ports.find(_owner("d"), 5) == 10_005
    assert ports.find(_owner("e"), 6) == 10_015


def test_a_job_for_which_there_is_no_room_gets_none() -> None:
    all_of_them = host_network.END_PORT - host_network.FIRST_PORT
    full_job = _body("a", hostPorts={"first": host_network.FIRST_PORT, "count": all_of_them - 1})
    ports = host_port_allocator.HostPortAllocator(
        _known(full_job, _body("b"), _body("c")), all_of_them
    )
    assert ports.find(_owner("b"), 2) is None
    assert ports.find(_owner("c"), 1) == host_network.END_PORT - 1


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 2**62), (10_000, 2**63 - 1), (10_000, 20_001), (9_999, 2), (10_000, -1)],
)
def test_ports_that_no_operator_gave_out_are_nobodys(first: int, count: int) -> None:
    """They would keep other jobs from ports, or end each look at one."""
    strange = _body("a", hostPorts={"first": first, "count": count})
    ports = host_port_allocator.HostPortAllocator(_known(strange, _body("b")))
    assert ports.find(_owner("b"), 2) == 10_000


def test_the_jobs_of_a_namespace_have_a_bound_together() -> None:
    first = _body("a", hostPorts={"first": 10_000, "count": 5})
    other = {**_body("x"), "metadata": {**_body("x")["metadata"], "namespace": "other"}}
    ports = host_port_allocator.HostPortAllocator(_known(first, _body("b"), _body("c"), other), 8)
    assert (ports.find(_owner("b"), 4), ports.left(_owner("b"))) == (None, 3)
    assert ports.find(_owner("b"), 3) == 10_005
    assert (ports.find(_owner("c"), 1), ports.left(_owner("c"))) == (None, 0)
    assert ports.find(_owner("a"), 6) is None, "nor does a job that has some get more"
    assert ports.find(records.Owner("other", "x", "x"), 8) == 10_008


def test_a_promise_that_is_taken_back_leaves_the_ports_to_others() -> None:
    ports = host_port_allocator.HostPortAllocator(_known(_body("a"), _body("b")))
    assert ports.find(_owner("a"), 3) == 10_000
    ports.release("a")
    assert ports.find(_owner("b"), 3) == 10_000


def _listens_on(pods: dict[str, dict[str, Any]], job: str) -> list[int]:
    ports = []
    for name, pod in sorted(pods.items()):
        if name.startswith(f"{job}-"):
            [port] = pod["spec"]["containers"][0]["ports"]
            assert port["hostPort"] == port["containerPort"]
            ports.append(port["containerPort"])
    return ports


async def test_jobs_whose_pods_are_refused_hold_no_ports(namespace: Namespace) -> None:
    """Pod Security forbids the network of nodes in one namespace; another one needs all ports."""
    other = Namespace(namespace.api, namespace.cluster, namespaces.fresh_name())
    await other.create_namespace()
    namespace.kubectl(
        "label", "namespace", namespace.name, "pod-security.kubernetes.io/enforce=restricted"
    )
    most = host_network.END_PORT - host_network.FIRST_PORT
    watched = (namespace.name, other.name)
    try:
        async with namespace.operator(watch_namespaces=watched, host_ports_per_namespace=most):
            for number in range(4):
                job = objects.job(f"greedy-{number}", workers=1, **HOST)
                job["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 5_000
                await namespace.create_job(job)
                await namespace.until_status(
                    "its pods are refused and it has no ports",
                    lambda now: now.get("conditions") and "hostPorts" not in now,
                    f"greedy-{number}",
                )
                refused = await namespace.condition("CreationRefused", f"greedy-{number}")
                assert refused["reason"] == "AdmissionDenied"
            await other.create_job(objects.job("victim", workers=1, **HOST))
            await other.until_pods("victim-chief-0", "victim-worker-0")
            assert (await other.status("victim"))["hostPorts"]["count"] == 2
    finally:
        await other.delete_jobs()


async def test_jobs_on_their_nodes_network_get_different_ports(namespace: Namespace) -> None:
    async def pods_of(*names: str) -> None:
        async def there() -> bool:
            pods = await namespace.pods()
            return all(f"{name}-worker-1" in pods for name in names)

        await waiting.until_async(there, f"the pods of {', '.join(names)}")

    with pytest.raises(errors.Invalid, match="with hostNetwork, set network to Open"):
        await namespace.create_job(objects.job("refused", hostNetwork=True))
    async with namespace.operator():
        for name in ("one", "two"):
            await namespace.create_job(objects.job(name, workers=2, **HOST))
        await pods_of("one", "two")
    async with namespace.operator():
        await namespace.create_job(objects.job("three", workers=2, **HOST))
        await pods_of("three")
    pods = await namespace.pods()
    ports_by_job = {name: _listens_on(pods, name) for name in ("one", "two", "three")}
    for name, ports in ports_by_job.items():
        block = (await namespace.status(name))["hostPorts"]
        assert ports == list(range(block["first"], block["first"] + block["count"]))
    assert sorted(port for ports in ports_by_job.values() for port in ports) == list(
        range(host_network.FIRST_PORT, host_network.FIRST_PORT + 9)
    )
