"""Metrics count what has happened, once, whoever saw it and however often."""

import pathlib
from typing import Any

import pytest
from prometheus_client import parser

from testing import clock, pages, waiting
from testing.operator import memory_api, objects, operator_process, scripted_server
from testing.operator.memory_cluster import MemoryCluster
from testing.operator.namespaces import Namespace
from tfparallel_operator.api import names
from tfparallel_operator.api_server import client, errors, resources
from tfparallel_operator.engine.observe import children, jobs
from tfparallel_operator.engine.run import gauges
from tfparallel_operator.engine.telemetry import metrics
from tfparallel_operator.engine.workqueue import queue

ALL = ("digits-chief-0", "digits-worker-0", "digits-worker-1")


def value(counted: metrics.Metrics, name: str, **labels: str) -> float:
    """A sample, 0 while there is none."""
    return counted.registry.get_sample_value(f"tfparallel_{name}", labels) or 0.0


async def test_the_life_of_a_job_is_counted() -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        counted = world.engine.metrics
        assert value(counted, "jobs_started_total") == 1
        await world.start_pods(seconds=4)
        await world.end("digits-worker-0", 1, seconds=100)
        await world.start_pods(seconds=20)
        await world.vanish("digits-worker-1")
        await world.start_pods(seconds=20)
        assert value(counted, "job_restarts_total", cause="RetryableExit") == 1
        assert value(counted, "job_restarts_total", cause="Disruption") == 1
        assert value(counted, "jobs_ended_total", state="Succeeded", reason="ChiefSucceeded") == 0
        await world.end("digits-chief-0", 0, seconds=56)
    assert value(counted, "jobs_ended_total", state="Succeeded", reason="ChiefSucceeded") == 1
    assert value(counted, "jobs_started_total") == 1
    assert value(counted, "job_startup_seconds_count") == 1
    assert value(counted, "job_startup_seconds_sum") == 4
    assert value(counted, "job_duration_seconds_count", state="Succeeded") == 1
    assert value(counted, "job_duration_seconds_sum", state="Succeeded") == 200
    assert value(counted, "reconcile_duration_seconds_count", outcome="done") > 3
    assert value(counted, "status_delay_seconds_count") > 3
    assert value(counted, "status_delay_seconds_sum") < 60
    assert value(counted, "reconcile_duration_seconds_count", outcome="bug") == 0


async def test_a_restarted_operator_counts_nothing_twice() -> None:
    world = MemoryCluster()
    async with world.running(objects.job()):
        await world.start_pods()
        await world.end("digits-worker-0", 1)
    async with world.running():
        counted = world.engine.metrics
        await world.start_pods()
        assert value(counted, "jobs_started_total") == 0
        assert value(counted, "job_restarts_total", cause="RetryableExit") == 0
        await world.end("digits-chief-0", 3)
        assert world.status["state"] == "Restarting"
        assert value(counted, "job_restarts_total", cause="RetryableExit") == 1


def _body(uid: str = "uid", **status: Any) -> dict[str, Any]:
    return {"metadata": {"uid": uid}, "status": status}


def _condition(kind: str, reason: str = "", at: str = "2026-11-21T10:00:00Z") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "lastTransitionTime": at}


def test_skipped_versions_are_caught_up() -> None:
    counted = metrics.Metrics()
    counted.job_changed(
        _body(), _body(attempt=4, restartCauses={"RetryableExit": 2, "Disruption": 1})
    )
    assert value(counted, "jobs_started_total") == 1
    assert value(counted, "job_restarts_total", cause="RetryableExit") == 2
    assert value(counted, "job_restarts_total", cause="Disruption") == 1


def test_a_restart_whose_cause_turns_out_to_be_another_is_counted_once() -> None:
    counted = metrics.Metrics()
    before = _body(attempt=2, restartCauses={"RetryableExit": 1})
    counted.job_changed(_body(attempt=1), before)
    after = _body(attempt=3, restartCauses={"Disruption": 2})
    counted.job_changed(before, after)
    assert value(counted, "job_restarts_total", cause="RetryableExit") == 1
    assert value(counted, "job_restarts_total", cause="Disruption") == 1


def test_the_seconds_of_all_activities_are_the_age_of_a_job() -> None:
    counted = metrics.Metrics()
    conditions = [_condition("Running", at="2026-11-21T10:00:00Z")]
    recorded = {"phase": "starting", "since": "2026-11-21T10:00:00Z", "seconds": {"queued": 4}}
    starting: dict[str, Any] = {"goodput": recorded, "conditions": conditions}
    seconds = {"training": 30, "inputWait": 5}
    report: dict[str, Any] = {
        "step": 9,
        "lastUpdateTime": "2026-11-21T10:00:50Z",
        "seconds": seconds,
    }
    ended = {"queued": 4, "starting": 15, "training": 33, "inputWait": 5}
    end = {"since": "2026-11-21T10:00:53Z", "seconds": ended}
    versions = [
        _body(),
        _body(**starting),
        _body(**starting, progress=report),
        _body(**starting, progress=report, attempt=2),
        _body(goodput=end, conditions=[_condition("Failed")], progress=report),
    ]
    expected = [{"queued": 4}, {"queued": 4, "starting": 15, **seconds}, None, ended]
    for before, after, activities in zip(versions, versions[1:], expected, strict=False):
        counted.job_changed(before, after)
        for activity, total in (activities or {}).items():
            assert value(counted, "job_activity_seconds_total", activity=activity) == total
    every = (
        value(counted, "job_activity_seconds_total", activity=activity)
        for activity in names.Activity
    )
    assert sum(every) == 57


def test_a_status_that_cannot_be_read_adds_no_seconds() -> None:
    counted = metrics.Metrics()
    counted.job_changed(_body(), _body(goodput={"since": "yesterday"}))
    assert value(counted, "job_activity_seconds_total", activity="queued") == 0


def test_another_job_of_the_same_name_is_a_new_one() -> None:
    counted = metrics.Metrics()
    ended = _body("old", attempt=1, conditions=[_condition("Succeeded", "ChiefSucceeded")])
    counted.job_changed(_body("other"), ended)
    counted.job_changed(None, ended)
    counted.job_changed(ended, ended)
    assert value(counted, "jobs_ended_total", state="Succeeded", reason="ChiefSucceeded") == 0


def test_replicas_that_wait_once_more_do_not_start_the_job_again() -> None:
    counted = metrics.Metrics()
    start: dict[str, Any] = {"attempt": 1, "startTime": "2026-11-21T10:00:00Z"}
    waits = {**_condition("Running"), "status": "False"}
    later = {**waits, "lastTransitionTime": "2026-11-21T11:00:00Z"}
    runs = _condition("Running", at="2026-11-21T10:00:30Z")
    counted.job_changed(_body(**start, conditions=[waits]), _body(**start, conditions=[runs]))
    counted.job_changed(_body(**start, conditions=[later]), _body(**start, conditions=[runs]))
    assert value(counted, "job_startup_seconds_count") == 1
    assert value(counted, "job_startup_seconds_sum") == 30


async def test_a_job_without_a_usable_spec_ends_without_a_duration() -> None:
    world = MemoryCluster()
    async with world.running(objects.job(strategy="Mirrored")):
        counted = world.engine.metrics
        assert world.status["state"] == "Failed"
    assert value(counted, "jobs_ended_total", state="Failed", reason="InvalidSpec") == 1
    assert value(counted, "job_duration_seconds_count", state="Failed") == 0


async def test_the_state_is_read_when_somebody_asks() -> None:
    time = clock.Clock(100.0)
    work: queue.Queue[queue.Key] = queue.Queue(clock=time)
    store = jobs.Jobs(work)
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    counted = metrics.Metrics()
    counted.registry.register(gauges.Gauges(store, work, job_children))
    for number, state in enumerate(("Running", "Running", "Failed", "")):
        name = f"job-{number}"
        metadata = {"namespace": "a", "name": name, "uid": name, "resourceVersion": "1"}
        store.apply_event("ADDED", {"metadata": metadata, "status": {"state": state}})
    time.now += 7
    assert value(counted, "jobs", state="Running") == 2
    assert value(counted, "jobs", state="Pending") == 1
    assert value(counted, "jobs", state="Succeeded") == 0
    assert value(counted, "queue_depth") == 4
    assert value(counted, "queue_age_seconds") == 7
    for resource in ("pods", "services", "configmaps", "networkpolicies", names.PLURAL):
        assert 0 <= value(counted, "watch_age_seconds", resource=resource) < 60
    while len(work):
        work.done(await work.get())
    assert value(counted, "queue_age_seconds") == 0


async def test_requests_are_counted_by_verb_resource_and_answer() -> None:
    counted = metrics.Metrics()

    def requests(verb: str, resource: str, code: str) -> float:
        labels = {"verb": verb, "resource": resource, "code": code}
        return value(counted, "api_requests_total", **labels)

    async with scripted_server.serving() as server, server.client(called=counted.called) as api:
        server.script = [scripted_server.document({"metadata": {}}, 201)]
        await api.create(resources.PODS, "default", {})
        server.script = [scripted_server.document({}, 409)]
        with pytest.raises(errors.Conflict):
            await api.patch(resources.JOBS.path("default", "digits", "status"), {})
        server.script = [scripted_server.document({}, 410)]
        with pytest.raises(errors.Expired):
            [event async for event in api.watch(resources.PODS, None, "1")]
        server.script = [scripted_server.document(scripted_server.listing(7))]
        await api.list(resources.JOBS, None)
    # Nothing listens there any more.
    async with client.Client(api.access, called=counted.called) as api:
        with pytest.raises(errors.Unavailable):
            await api.get(resources.CONFIG_MAPS.path("default", "digits"))
        with pytest.raises(errors.Unavailable):
            [event async for event in api.watch(resources.PODS, None, "1")]
    assert requests("create", "pods", "201") == 1
    assert requests("patch", names.PLURAL, "409") == 1
    assert requests("watch", "pods", "410") == 1
    assert requests("list", names.PLURAL, "200") == 1
    assert requests("get", "configmaps", "none") == 1
    assert requests("watch", "pods", "none") == 1
    assert value(counted, "api_request_duration_seconds_count", verb="create") == 1
    assert value(counted, "api_request_duration_seconds_count", verb="watch") == 0


def _families(counted: metrics.Metrics) -> dict[str, tuple[str, list[str]]]:
    """Type and labels of every metric of the operator's own, as Prometheus sees them."""
    store = jobs.Jobs(queue.Queue())
    job_children = children.ChildIndex(memory_api.MemoryApi(), (), lambda _: None)
    counted.registry.register(gauges.Gauges(store, queue.Queue(), job_children))
    counted.job_changed(
        _body(), _body(attempt=1, conditions=[_condition("Failed", "InvalidTemplate")])
    )
    counted.job_changed(
        _body(attempt=1, startTime="2026-11-21T10:00:00Z"),
        _body(
            attempt=1,
            startTime="2026-11-21T10:00:00Z",
            conditions=[_condition("Succeeded", "ChiefSucceeded"), _condition("Running")],
        ),
    )
    counted.called("get", "pods", 200, 0.1)
    counted.reconciled(metrics.ReconcileResult.DONE, 0.1)
    counted.reported(202)
    families = {}
    for family in counted.registry.collect():
        if family.name.startswith("tfparallel_"):
            label_names = {label for sample in family.samples for label in sample.labels} - {"le"}
            total = "_total" if family.type == "counter" else ""
            total = "_info" if family.type == "info" else total
            families[f"{family.name}{total}"] = family.type, sorted(label_names)
    return families


async def test_the_page_lists_every_metric_with_its_type_and_labels() -> None:
    listed = {
        name: (kind, sorted(labels.replace("`", "").split(", ")) if labels else [])
        for name, kind, labels, _ in pages.rows("operate/metrics.md", "## The operator's own")
    }
    assert listed == _families(metrics.Metrics())


async def test_no_label_names_a_job_or_a_pod() -> None:
    unbounded = {"job", "pod", "name", "namespace", "uid", "replica", "node"}
    for _, labels in _families(metrics.Metrics()).values():
        assert unbounded.isdisjoint(labels)


def test_the_page_lists_every_outcome() -> None:
    listed = [row[0] for row in pages.rows("operate/metrics.md", "### Outcomes of a reconcile")]
    assert listed == list(metrics.ReconcileResult)


async def test_the_process_shows_what_happened_on_a_real_server(
    namespace: Namespace, tmp_path: pathlib.Path
) -> None:
    async with operator_process.running(namespace.variables, tmp_path / "operator.log") as operator:
        await operator.until_ready()
        await namespace.create_job()
        await namespace.run_pods(*ALL)
        await namespace.end("digits-worker-1", 1)
        await namespace.run_pods(*ALL, attempt=2)
        await namespace.end("digits-chief-0", 0)
        await namespace.until_state("Succeeded")

        async def counted() -> bool:
            return (await _scrape(operator)).get(("tfparallel_jobs", "state=Succeeded")) == 1.0

        await waiting.until_async(counted, "the job is counted")
        samples = await _scrape(operator)
    assert samples["tfparallel_jobs_started_total", ""] == 1
    ended = "reason=ChiefSucceeded,state=Succeeded"
    assert samples["tfparallel_jobs_ended_total", ended] == 1
    assert samples["tfparallel_job_restarts_total", "cause=RetryableExit"] == 1
    assert samples["tfparallel_job_restarts_total", "cause=Disruption"] == 0
    assert samples["tfparallel_job_startup_seconds_count", ""] == 1
    assert samples["tfparallel_job_duration_seconds_count", "state=Succeeded"] == 1
    created = "code=201,resource=pods,verb=create"
    assert samples["tfparallel_api_requests_total", created] == 6
    assert samples["tfparallel_watch_age_seconds", "resource=pods"] < 70
    assert samples["process_resident_memory_bytes", ""] > 1e7
    assert not [key for key in samples if "digits" in key[1] or namespace.name in key[1]]


async def _scrape(operator: operator_process.OperatorProcess) -> dict[tuple[str, str], float]:
    status, text = await operator.probe(metrics.PATH)
    assert status == 200
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value
        for family in parser.text_string_to_metric_families(text)
        for sample in family.samples
    }
