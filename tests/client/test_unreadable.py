"""Jobs and pods whose stored objects are stranger than anybody writes: each list has the rest."""

import asyncio
import datetime
import pathlib
from typing import Any

import pytest

from testing import invocation
from testing.operator import objects, routes, scripted_server
from testing.operator.namespaces import Namespace
from tfparallel.backends.cluster import objects as cluster_objects
from tfparallel.cli import listing
from tfparallel_operator.api import gate, job_status, load
from tfparallel_operator.api_server import resources

JOBS = resources.JOBS.path("team")
BROKEN = routes.job("broken", 3)
BROKEN["status"]["startTime"] = "0001-01-01T00:00:00+10:00"  # the API server stores it
SENTENCE = "the status of broken cannot be read: "
DOCUMENTS = {
    JOBS: scripted_server.listing(5, BROKEN, routes.job("digits", 4)),
    f"{JOBS}/broken": BROKEN,
}


async def call(config: pathlib.Path, *arguments: str) -> invocation.Result:
    command = (*arguments, "--kubeconfig", str(config))
    return await asyncio.to_thread(invocation.invoke, command)


def rows(result: invocation.Result) -> dict[str, list[str]]:
    assert result.exit_code == 0, result.output
    return {cells[0]: cells[1:] for cells in map(str.split, result.stdout.splitlines())}


@pytest.mark.parametrize(
    "command", [("get", "jobs"), ("get", "jobs", "-o", "wide"), ("status",)], ids=" ".join
)
async def test_a_job_whose_status_cannot_be_read_hides_no_other(
    tmp_path: pathlib.Path, command: tuple[str, ...]
) -> None:
    async with scripted_server.serving() as server:
        server.script = [routes.answers(DOCUMENTS)]
        config = routes.kubeconfig(tmp_path, server.url)
        result = await call(config, *command)
        assert rows(result)["broken"][0] == "Unreadable"
        assert rows(result)["digits"][0] == "Running"
        assert (SENTENCE in result.stdout) == ("wide" in command)
        for verb in (("get", "job"), ("status",)):
            alone = await call(config, *verb, "broken")
            assert alone.exit_code == 2
            assert SENTENCE in alone.stderr


async def test_a_watch_goes_on_past_it(capsys: pytest.CaptureFixture[str]) -> None:
    async def changes() -> Any:
        for body in (BROKEN, routes.job("digits", 6)):
            yield cluster_objects.parse_listed_job(body)

    await listing.follow(changes(), "table", everywhere=False)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in printed[1:]] == [
        ["broken", "Unreadable"],
        ["digits", "Running"],
    ]


@pytest.mark.parametrize(
    ("time", "expected"),
    [
        ("10000-01-01T09:59:59Z", None),
        ("0000-12-31T14:00:00Z", None),
        ("0001-01-01T00:00:00+10:00", None),
        ("2026-01-01T00:00:00", datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)),
    ],
)
def test_times_of_a_pod_that_have_no_meaning_are_none(
    time: str, expected: datetime.datetime | None
) -> None:
    state = {"terminated": {"exitCode": 1, "startedAt": time, "finishedAt": time}}
    body = {
        "metadata": {"name": "digits-worker-0", "creationTimestamp": time},
        "status": {"containerStatuses": [{"name": "tensorflow", "state": state}]},
    }
    pod = cluster_objects.parse_pod(body)
    assert (pod.created, pod.started, pod.ended) == (expected,) * 3


def test_a_pod_that_has_stayed_belongs_to_the_latest_attempt() -> None:
    def attempt_of(label: int, in_place_at: int) -> int:
        labels = {"tfparallel.dev/attempt": str(label), "tfparallel.dev/replica-role": "worker"}
        stayed = job_status.InPlaceStatus(attempt=in_place_at, pods_since=2)
        status = job_status.JobStatus(attempt=4, in_place=stayed)
        body = {"metadata": {"name": "a", "labels": labels}}
        return cluster_objects.parse_pod(body, status).attempt

    assert [attempt_of(label, 4) for label in (1, 2, 3, 4, 5)] == [1, 4, 4, 4, 5]
    assert attempt_of(2, 3) == 2, "an older operator has begun attempt 4"


def test_a_label_of_a_pod_that_is_no_number_counts_as_none() -> None:
    labels = {"tfparallel.dev/attempt": "many", "tfparallel.dev/replica-role": "worker"}
    assert cluster_objects.parse_pod({"metadata": {"name": "a", "labels": labels}}).attempt == 0


def test_a_status_with_a_time_before_all_times_is_refused_with_a_sentence() -> None:
    with pytest.raises(load.SpecError, match=r"before year 1 or after year 9999\. Upgrade"):
        cluster_objects.parse_job(BROKEN)


@pytest.mark.parametrize(
    ("status", "sentence"),
    [
        ({"strange": "x" * gate.MAX_STATUS_BYTES}, "the operator reads at most 131072"),
        ({"progress": {"step": 3, "strange": "x" * gate.MAX_STATUS_BYTES}}, ""),
    ],
)
async def test_a_status_that_the_operator_leaves_unread_says_so_in_get_and_status(
    tmp_path: pathlib.Path, status: dict[str, Any], sentence: str
) -> None:
    body = {**routes.job("large", 6), "status": {"state": "Running", **status}}
    async with scripted_server.serving() as server:
        documents = {JOBS: scripted_server.listing(7, body), f"{JOBS}/large": body}
        server.script = [routes.answers(documents)]
        config = routes.kubeconfig(tmp_path, server.url)
        listed = await call(config, "get", "jobs", "-o", "wide")
        alone = await call(config, "status", "large")
    assert rows(listed)["large"][0] == ("Unreadable" if sentence else "Running")
    assert sentence in " ".join(listed.stdout.split())
    assert alone.exit_code == 2 or not sentence
    assert sentence in alone.stderr


async def test_a_real_api_server_stores_such_a_time_and_each_job_is_listed(
    namespace: Namespace,
) -> None:
    times = {"broken": BROKEN["status"]["startTime"], "digits": "2026-01-01T00:00:00Z"}
    for name, time in times.items():
        await namespace.create_job(objects.job(name))
        path = resources.JOBS.path(namespace.name, name, "status")
        await namespace.api.patch(path, {"status": {"state": "Running", "startTime": time}})
    listed = rows(await call(namespace.cluster.kubeconfig, "get", "jobs", "-n", namespace.name))
    states = {name: listed[name][0] for name in times}
    assert states == {"broken": "Unreadable", "digits": "Running"}


async def test_the_sentence_of_the_gate_is_shown_by_get_and_status(namespace: Namespace) -> None:
    value: Any = 1
    for _ in range(gate.MAX_DEPTH):
        value = [value]
    job = objects.job()
    job["spec"]["tfReplicaSpecs"]["Worker"]["template"]["strange"] = value
    async with namespace.operator():
        await namespace.create_job(job)
        await namespace.until_state("Failed")
    sentence = f"it nests deeper than {gate.MAX_DEPTH} levels"
    where = ("-n", namespace.name)
    wide = await call(namespace.cluster.kubeconfig, "get", "job", "digits", "-o", "wide", *where)
    single = await call(namespace.cluster.kubeconfig, "status", "digits", *where)
    for result in (wide, single):
        assert result.exit_code == 0, result.output
        assert sentence in " ".join(result.stdout.split())
