"""Events: which are written, of which type, and that repeats are not."""

import datetime
import itertools
import json
from collections.abc import Sequence
from typing import Any

from testing.operator import faults, objects, scenarios
from testing.operator.memory_cluster import MemoryCluster
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names, reasons
from tfparallel_operator.api_server import errors, resources
from tfparallel_operator.core import decision, installation, pending_reasons
from tfparallel_operator.core.pods import host_network
from tfparallel_operator.core.status import conditions
from tfparallel_operator.engine.observe import owned
from tfparallel_operator.engine.write import recorder
from tfparallel_trainer.contract import exits, hangs

SERVERS = {
    "Chief": {"template": objects.template()},
    "Worker": {"replicas": 2, "template": objects.template()},
    "PS": {"template": objects.template()},
}


def _refusal(
    kind: type[errors.ApiError],
    sentence: str = "exceeded quota",
    status: int = 0,
    fields: Sequence[str] = (),
) -> faults.Refusal:
    """Refuse pods with a message that differs each time."""
    used = itertools.count()

    def refuse(request: str) -> errors.ApiError:
        name = request.rpartition("/")[2]
        message = f"pods {name!r} is forbidden: {sentence}: used: pods={next(used)}"
        causes = tuple(errors.InvalidField(field, sentence) for field in fields)
        return kind(message, status=status, causes=causes)

    return faults.Refusal("^create .*/pods/", refuse)


def _without_gangs() -> faults.Refusal:
    """Refuse PodGroups and Workloads, as an API server that does not have them."""
    plurals = "|".join(resource.plural for resource in owned.OPTIONAL)
    unknown = errors.NotFound("the server could not find the requested resource", status=404)
    return faults.Refusal(f"^create .*/({plurals})/", unknown)


REFUSALS = (
    _refusal(errors.Refused),
    _refusal(errors.Refused, "no PriorityClass with name big was found"),
    _refusal(errors.Refused, "violates PodSecurity"),
    _refusal(errors.Unavailable, "too many requests", 429),
    _refusal(errors.Unavailable, "failed calling webhook", 500),
    _refusal(errors.Invalid, "above limit", 422, ["spec.containers[0].resources.requests"]),
)


def _neighbour() -> dict[str, Any]:
    """A job that another controller manages: it does nothing here but hold ports."""
    job = objects.job(runPolicy={"managedBy": "example.com/other"})
    job["metadata"]["name"] = "neighbour"
    return job


async def _queue() -> list[tuple[str, str]]:
    """Live through a queue that is not there, and one that takes the job's place back."""
    job = objects.job()
    job["metadata"]["labels"] = {names.LABEL_QUEUE: "research"}
    events: list[tuple[str, str]] = []
    for fault in (_without_gangs(), None):
        world = MemoryCluster(fault)
        async with world.running(job):
            for step in (scenarios.admit, scenarios.preempt):
                step(world.api)
                await world.engine.run_until_quiet(seconds=0)
        events += world.events()
    return events


async def _two_installations() -> list[tuple[str, str]]:
    """Live through a job on which another installation acts, which answers."""
    world = MemoryCluster()
    world.settings = {"installation": "system/first"}
    async with world.running(objects.job()):
        pass
    world.settings = {"installation": "team/second"}
    async with world.running():
        path = resources.CONFIG_MAPS.path("default", "digits-tfparallel")
        answer = f"team/second answered {world.clock.utc().isoformat()}"
        annotations = {names.ANNOTATION_QUESTION: answer}
        await world.api.patch(path, {"metadata": {"annotations": annotations}})
        await world.engine.run_until_quiet(seconds=0)
    return world.events()


async def _all_refusals() -> list[tuple[str, str]]:
    """Live through all that keeps pods from being created or deleted."""
    events: list[tuple[str, str]] = []
    for refusal in REFUSALS:
        world = MemoryCluster(refusal)
        async with world.running(objects.job()):
            await world.engine.run_until_quiet(seconds=2)
        events += world.events()

    world = MemoryCluster(_without_gangs())
    async with world.running(objects.job(scheduling={"gang": "Coscheduling"})):
        pass
    events += world.events()

    events += await _queue()

    world = MemoryCluster()
    async with world.running(_neighbour()):
        path = resources.JOBS.path("default", "neighbour", "status")
        count = host_network.END_PORT - host_network.FIRST_PORT
        ports = {"hostPorts": {"first": host_network.FIRST_PORT, "count": count}}
        await world.api.patch(path, {"status": ports})
        job = objects.job(network="Open", hostNetwork=True)
        await world.api.create(resources.JOBS, "default", job)
        await world.engine.run_until_quiet(seconds=0)
    events += world.events()

    world = MemoryCluster()
    world.settings = {"restrictions": installation.Restrictions(("trainer",))}
    async with world.running(objects.job()):
        pass
    events += world.events()

    forbidden = faults.Refusal("^delete ", errors.Refused("pods is forbidden", status=403))
    world = MemoryCluster(forbidden)
    async with world.running(objects.job()):
        await world.start_pods()
        await world.end("digits-worker-0", 1)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.end_source("digits-worker-0", 78)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job(workers=1)):
        await world.start_pods()
        world.api.remove(resources.PODS.path("default", "digits-chief-0"))
        await world.engine.run_until_quiet(seconds=0)
        await world.engine.run_until_quiet(seconds=10**8)
    return [*events, *world.events()]


async def _all_deadlines() -> list[tuple[str, str]]:
    """Live through deadlines, rules and scaling."""
    events: list[tuple[str, str]] = []
    rule = {"failurePolicy": {"rules": [{"action": "FailJob"}]}}
    world = MemoryCluster()
    async with world.running(objects.job(runPolicy=rule)):
        await world.start_pods()
        await world.vanish("digits-worker-0")
    events += world.events()

    hang = hangs.describe(hangs.Hang("step 7", "read (model.py:8)"), 60, "stepTimeoutSeconds")
    world = MemoryCluster()
    async with world.running(objects.job()):
        for _ in range(2):
            await world.start_pods()
            await world.end("digits-worker-0", exits.Exit.STALLED, message=hang)
            await world.engine.run_until_quiet(seconds=60)
            await world.let_go()
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job(runPolicy={"pendingDeadlineSeconds": 60})):
        await world.engine.run_until_quiet(seconds=60)
    events += world.events()

    elastic = objects.job(runPolicy={"stallDeadlineSeconds": 60, "scaleCooldownSeconds": 0})
    elastic["spec"]["tfReplicaSpecs"]["Worker"]["maxReplicas"] = 3
    world = MemoryCluster()
    async with world.running(elastic):
        await world.start_pods()
        await world.report(step=1, seconds=1)
        await world.engine.run_until_quiet(seconds=60)
        await world.let_go()
        await world.start_pods()
        path = resources.JOBS.path("default", "digits")
        await world.api.patch(path, {"spec": {"tfReplicaSpecs": {"Worker": {"replicas": 3}}}})
        await world.let_go()
    return [*events, *world.events()]


async def _bad_node() -> list[tuple[str, str]]:
    """Live through a node that fails twice, and pods that find no other one."""
    world = MemoryCluster()
    async with world.running(objects.job()):
        for _ in range(2):
            await world.start_pods()
            scenarios.fail_on_node("digits-worker-0", "bad")(world.api)
            await world.let_go()
            await world.engine.run_until_quiet(seconds=10)
        scenarios.find_no_node(world.api)
        await world.let_go()
    return world.events()


async def _all_edits() -> list[tuple[str, str]]:
    """Make the spec of a running job invalid, and valid again."""
    world = MemoryCluster()
    path = resources.JOBS.path("default", "digits")
    async with world.running(objects.job()):
        await world.start_pods()
        for strategy in ("Mirrored", None):
            await world.api.patch(path, {"spec": {"strategy": strategy}})
            await world.let_go()
    return world.events()


async def _all_events() -> set[tuple[str, str]]:
    """Live through everything that an Event is written of."""
    events: list[tuple[str, str]] = []

    world = MemoryCluster()
    async with world.running(objects.job(runPolicy={"backoffLimit": 1})):
        await world.change(suspend=True)
        await world.change(suspend=False)
        await world.start_pods()
        await world.vanish("digits-worker-1")
        await world.start_pods()
        await world.end("digits-worker-0", 1)
        await world.engine.run_until_quiet(seconds=10)
        await world.start_pods()
        await world.end("digits-worker-0", 1)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
        await world.report_separate_training(seconds=5)
        await world.report_large_model(seconds=5)
        await world.end("digits-chief-0", 0)
    events += world.events()

    world = MemoryCluster()
    in_place = {"name": names.CONTAINER, "image": "trainer:test", "restartPolicy": "Always"}
    chief = {"Chief": {"template": objects.template(containers=[in_place])}}
    async with world.running(objects.job(tfReplicaSpecs=chief)):
        await world.start_pods()
    events += world.events()

    world = MemoryCluster()
    workers = {"Worker": {"replicas": 2, "template": objects.template()}}
    async with world.running(objects.job(tfReplicaSpecs=workers)):
        await world.start_pods()
        await world.end("digits-worker-0", 0)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job(runPolicy={"activeDeadlineSeconds": 60})):
        await world.engine.run_until_quiet(seconds=60)
    events += world.events()

    for job in (objects.job(strategy="Mirrored"), objects.job()):
        world = MemoryCluster(_refusal(errors.Invalid))
        async with world.running(job):
            pass
        events += world.events()
    events += await _all_refusals()
    events += await _two_installations()
    events += await _all_deadlines()
    events += await _bad_node()
    events += await _all_edits()

    foreign = {"name": "digits-chief-0", "labels": {}}
    earlier = objects.pod()["metadata"] | {"ownerReferences": [objects.owner(uid="earlier")]}
    stuck = earlier | {"deletionTimestamp": "2026-11-21T10:00:00Z", "finalizers": ["a/b"]}
    for metadata in (foreign, earlier, stuck):
        world = MemoryCluster()
        other = {**objects.pod(), "metadata": {**metadata, "name": "digits-chief-0"}}
        await world.api.create(resources.PODS, "default", other)
        async with world.running(objects.job()):
            pass
        events += world.events()

    no_letter = errors.Invalid("metadata.name must begin with a letter", status=422)
    world = MemoryCluster(faults.Refusal("^patch .*/status$", no_letter))
    async with world.running(objects.job()):
        await world.engine.run_until_quiet(seconds=2)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
        await world.end("digits-worker-0", 67)
    events += world.events()

    world = MemoryCluster()
    async with world.running(objects.job() | {"status": {"attempt": "first"}}):
        pass
    events += world.events()
    return set(events)


async def test_every_event_is_of_the_type_that_the_reference_lists() -> None:
    listed = {(entry.event, reason) for reason, entry in reasons.REASONS.items() if entry.event}
    assert await _all_events() == listed


async def test_a_quota_that_is_tried_again_and_again_gives_one_event() -> None:
    refusal = _refusal(errors.Refused)
    world = MemoryCluster(refusal)
    async with world.running(objects.job()):
        for _ in range(20):
            await world.engine.run_until_quiet(seconds=300)
        assert refusal.count > 20
        assert world.events().count(("Warning", "QuotaExceeded")) == 1
    async with world.running():
        await world.engine.run_until_quiet(seconds=300)
        assert world.events().count(("Warning", "QuotaExceeded")) == 1


async def test_each_restart_of_a_replica_alone_is_reported() -> None:
    world = MemoryCluster()
    async with world.running(objects.job(tfReplicaSpecs=SERVERS)):
        await world.start_pods()
        for pause in (0, 10, 20):
            await world.vanish("digits-worker-1")
            await world.engine.run_until_quiet(seconds=pause)
            await world.start_pods()
        assert world.status["attempt"] == 1
        assert world.events().count(("Warning", "ReplicaLost")) == 3


async def test_the_number_of_events_does_not_grow_with_the_number_of_pods() -> None:
    counts = []
    for workers in (1, 60):
        world = MemoryCluster()
        async with world.running(objects.job(workers=workers)):
            await world.start_pods()
            await world.end("digits-chief-0", 0)
        counts.append(world.events())
    assert counts[0] == counts[1]


async def test_a_restarted_operator_repeats_nothing() -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
    before = world.events()
    async with world.running():
        await world.engine.run_until_quiet(seconds=60)
    assert world.events() == before


async def test_a_status_has_no_field_that_says_nothing() -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
        assert world.status["restartCount"] == 0
        for fields in (world.status, *world.status["replicas"].values()):
            assert not [name for name, value in fields.items() if value in ("", {}, None)]


async def test_a_refusal_of_any_length_is_said_on_the_job_within_the_limits() -> None:
    sentence = "Unsupported value: " + "\x1b[31m\u202e層\n" * 100_000
    world = MemoryCluster(_refusal(errors.Invalid, sentence, 422))
    async with world.running(objects.job()):
        await world.engine.run_until_quiet(seconds=2)
    [failed] = [
        condition for condition in world.status["conditions"] if condition["type"] == "Failed"
    ]
    [event] = [event for event in world.api.items(resources.EVENTS) if event["type"] == "Warning"]
    for text, limit in (
        (failed["message"], conditions.MESSAGE_BYTES),
        (event["note"], recorder.MESSAGE_BYTES),
    ):
        assert limit - 10 <= len(text.encode()) <= limit
        assert r"Unsupported value: \x1b[31m\u202e層 \x1b" in text
        assert text.endswith("...")


async def test_what_replicas_wait_for_and_how_one_ended_is_shortened() -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        for pod in world.api.items(resources.PODS):
            reason = {"reason": "ImagePullBackOff", "message": "\x1b[2J" * 20_000}
            world.api.write_status(pod, phase="Pending", **objects.container(waiting=reason))
        await world.engine.run_until_quiet(seconds=0)
        shortened = world.status["replicas"]["Worker"]["reason"]
        assert r"\x1b[2J" in shortened
        assert len(shortened.encode()) <= conditions.MESSAGE_BYTES
        [pod] = [p for p in world.api.items(resources.PODS) if "chief" in p["metadata"]["name"]]
        ended = {"exitCode": 1, "reason": "\x1bc" * 20_000, "message": "x" * 100_000}
        world.api.write_status(pod, phase="Failed", **objects.container(terminated=ended))
        await world.let_go()
        last = world.status["replicas"]["Chief"]["lastExit"]
        assert last["reason"].startswith(r"\x1bc\x1bc")
        assert len(last["reason"]) <= 256
    for condition in world.status["conditions"]:
        assert len(condition["message"].encode()) <= conditions.MESSAGE_BYTES
        assert "\x1b" not in condition["message"]


async def test_the_api_server_takes_an_event_of_any_words(namespace: Namespace) -> None:
    job = await namespace.create_job()
    event = decision.warning(names.Reason.REPLICA_FAILED, "層\x1b[2J\n" * 2000)
    manifest = recorder._manifest(job, event, "", "test", datetime.datetime.now(datetime.UTC))
    written = await namespace.api.create(resources.CORE_EVENTS, namespace.name, manifest)
    assert written["message"].startswith(r"層\x1b[2J 層")


async def test_an_event_has_the_lost_pod_and_the_restart_as_fields(namespace: Namespace) -> None:
    job = await namespace.create_job()
    event = decision.JobEvent(
        decision.EventType.WARNING,
        names.Reason.REPLICA_LOST,
        "words",
        names.EventAction.RESTART_WITH_CHIEF,
        "digits-ps-0",
    )
    manifest = recorder._manifest(job, event, "", "test", datetime.datetime.now(datetime.UTC))
    await namespace.api.create(resources.CORE_EVENTS, namespace.name, manifest)
    [written] = pending_reasons.parse_events(
        (await namespace.api.list(resources.EVENTS, namespace.name)).items
    )
    assert (written.action, written.pod) == ("RestartWithChief", "digits-ps-0")


async def test_kubectl_describes_events_in_their_order(namespace: Namespace) -> None:
    job = await namespace.create_job()
    event_reasons = [*names.Reason][:8]
    began = datetime.datetime.now(datetime.UTC) - datetime.timedelta(minutes=3)
    for number, reason in enumerate(event_reasons):
        moment = began + datetime.timedelta(seconds=number)
        manifest = recorder._manifest(job, decision.normal(reason, "words"), "", "test", moment)
        await namespace.api.create(resources.CORE_EVENTS, namespace.name, manifest)
    lines = namespace.kubectl("describe", names.PLURAL, job["metadata"]["name"]).splitlines()
    shown = [line.split() for line in lines[lines.index("Events:") + 3 :]]
    assert [columns[1] for columns in shown] == event_reasons
    assert {columns[3] for columns in shown} == {names.CONTROLLER}
    listed = json.loads(namespace.kubectl("get", "events", "-o", "json"))["items"]
    assert {event["count"] for event in listed} == {1}
    events = pending_reasons.parse_events(
        (await namespace.api.list(resources.EVENTS, namespace.name)).items
    )
    assert [event.time for event in events] == [
        began + datetime.timedelta(seconds=number) for number in range(len(event_reasons))
    ]
