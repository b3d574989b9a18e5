"""What is kept of a job."""

import pytest

from testing.operator import objects
from tfparallel_operator.api import gate, load, names
from tfparallel_operator.engine.observe import jobs
from tfparallel_operator.engine.workqueue import queue

KEY = queue.Key("team", "digits")
METADATA = {"name": "digits", "namespace": "team", "uid": "u"}


def _body(version: int, **more: object) -> dict[str, object]:
    job = objects.job()
    metadata = {**METADATA, "resourceVersion": str(version), "annotations": {"a": "b" * 1000}}
    return {**job, "metadata": metadata, **more}


def test_a_large_spec_is_kept_compressed_and_comes_back_for_a_look() -> None:
    store = jobs.Jobs(queue.Queue())
    spec: dict[str, object] = {"values": [{} for _ in range(jobs.LARGE_SPEC_BYTES)]}
    store.apply_event("ADDED", _body(1, spec=spec))
    [kept] = store.bodies()
    assert "spec" not in kept
    assert max(len(value) for value in kept.values() if isinstance(value, bytes)) < 1000
    body = store.get(KEY)
    assert body is not None
    assert body["spec"] == spec
    assert body.keys() == _body(1).keys()


def test_annotations_are_not_kept() -> None:
    store = jobs.Jobs(queue.Queue())
    store.apply_event("ADDED", _body(1))
    body = store.get(KEY)
    assert body is not None
    assert body["metadata"].keys() == {"name", "namespace", "uid", "resourceVersion"}
    assert body["spec"] == objects.job()["spec"]


def test_of_labels_those_are_kept_that_decide() -> None:
    """The API server does not limit their number."""
    store = jobs.Jobs(queue.Queue())
    labels = {f"l{number}": "x" for number in range(1000)}
    queued = {names.LABEL_QUEUE: "q", names.LABEL_WORKLOAD_PRIORITY: "p"}
    short: dict[str, object] = {**METADATA, "resourceVersion": "1", "labels": queued}
    owners = [{"name": f"o{number}"} for number in range(1000)]
    more: dict[str, object] = {"labels": labels | queued, "ownerReferences": owners}
    store.apply_event("ADDED", {**objects.job(), "metadata": short | more})
    [kept] = store.bodies()
    assert kept["metadata"] == short


def test_a_job_whose_status_is_beyond_the_limits_keeps_its_ports() -> None:
    store = jobs.Jobs(queue.Queue())
    status = {"state": "Running", "hostPorts": {"first": 10_000, "count": 2}}
    store.apply_event("ADDED", _body(1, status=status))
    store.apply_event("MODIFIED", _body(2, **{gate.STATUS_PROBLEM: "status: it is too large"}))
    [newest] = store.bodies()
    assert newest["status"] == status
    assert store.count_beyond_limits() == 1
    with pytest.raises(load.StatusError, match="too large"):
        load.read_status(newest)


def test_a_large_status_is_kept_compressed_and_its_changes_are_counted() -> None:
    changes: list[tuple[object, ...]] = []

    def count(before: jobs.Body | None, after: jobs.Body) -> None:
        changes.append((before and before["status"], after["status"]))

    store = jobs.Jobs(queue.Queue(), count)
    attempts = {f"worker-{number}": 1 for number in range(3_000)}
    small = {"state": "Running", "attempt": 1, "hostPorts": {"first": 10_000, "count": 2}}
    large = {**small, "replicaAttempts": attempts, "conditions": [{"type": "Running"}]}
    store.apply_event("ADDED", _body(1, status=large))
    store.apply_event("MODIFIED", _body(2, status={**large, "attempt": 2}))
    assert changes == [(None, large), (large, {**large, "attempt": 2})]
    [kept] = store.bodies()
    assert kept["status"] == {**small, "attempt": 2}
    body = store.get(KEY)
    assert body is not None
    assert body["status"] == {**large, "attempt": 2}
    assert body.keys() == _body(1, status={}).keys()


def test_a_job_whose_change_cannot_be_counted_is_seen_and_so_is_the_next(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def fail(_: jobs.Body | None, after: jobs.Body) -> None:
        if after["metadata"]["uid"] == "u":
            raise ZeroDivisionError("a bug")

    work: queue.Queue[queue.Key] = queue.Queue()
    store = jobs.Jobs(work, fail)
    other = _body(2)
    other["metadata"] = {**METADATA, "name": "flowers", "uid": "v", "resourceVersion": "2"}
    store.add_page([_body(1), other], 2)
    job_names = {body["metadata"]["name"] for body in store.bodies()}
    assert job_names == {"digits", "flowers"}
    assert len(work) == 2
    assert "a change of job team/digits is not counted" in caplog.text
