"""From a pod's JSON to the value that is decided on."""

import datetime
from typing import Any

import pytest

from testing.operator import objects
from tfparallel_operator.api import gate, names, types
from tfparallel_operator.core import observation, replicas
from tfparallel_operator.engine.observe import records

PHASE = observation.Phase
TENTH = datetime.datetime(2026, 11, 21, 10, microsecond=123456, tzinfo=datetime.UTC)


def _seen(**status: Any) -> observation.Pod:
    pod = records.pod(objects.pod(**status))
    assert pod is not None
    return pod


def test_identity_comes_from_labels_and_metadata() -> None:
    pod = _seen(phase="Pending")
    assert pod.name == "digits-worker-0"
    assert pod.uid == "pod-uid"
    assert pod.replica == replicas.Replica(types.Role.WORKER, 0)
    assert (pod.attempt, pod.replica_attempt) == (1, 0)
    assert not pod.deleting


@pytest.mark.parametrize("label", [names.LABEL_ROLE, names.LABEL_INDEX, names.LABEL_ATTEMPT])
def test_a_pod_without_our_labels_is_left_out(label: str) -> None:
    raw = objects.pod()
    del raw["metadata"]["labels"][label]
    assert records.pod(raw) is None


@pytest.mark.parametrize(
    ("status", "phase"),
    [
        ({}, PHASE.PENDING),
        ({"phase": "Pending"}, PHASE.PENDING),
        ({"phase": "Running"}, PHASE.RUNNING),
        ({"phase": "Running", **objects.container(running={})}, PHASE.RUNNING),
        ({"phase": "Pending", **objects.container(waiting={"reason": "X"})}, PHASE.PENDING),
        ({"phase": "Running", **objects.container(waiting={"reason": "X"})}, PHASE.PENDING),
        ({"phase": "Running", **objects.container(terminated={"exitCode": 0})}, PHASE.SUCCEEDED),
        ({"phase": "Running", **objects.container(terminated={"exitCode": 1})}, PHASE.FAILED),
        ({"phase": "Failed", **objects.container(terminated={"exitCode": 0})}, PHASE.SUCCEEDED),
        ({"phase": "Succeeded"}, PHASE.SUCCEEDED),
        ({"phase": "Failed"}, PHASE.FAILED),
        ({"phase": "Unknown"}, PHASE.PENDING),
    ],
)
def test_the_training_container_decides_and_not_its_sidecars(
    status: dict[str, Any], phase: observation.Phase
) -> None:
    assert _seen(**status).phase is phase


@pytest.mark.parametrize(
    ("state", "beside", "lingers"),
    [
        ("terminated", "running", True),
        ("terminated", "terminated", False),
        ("terminated", "waiting", False),
        ("running", "running", False),
    ],
)
def test_a_pod_lingers_while_a_sidecar_outlives_training(
    state: str, beside: str, lingers: bool
) -> None:
    states: dict[str, dict[str, Any]] = {
        "terminated": {"exitCode": 0},
        "running": {},
        "waiting": {},
    }
    [trains] = objects.container(**{state: states[state]})["containerStatuses"]
    proxy = {"name": "proxy", "state": {beside: states[beside]}}
    assert _seen(phase="Running", containerStatuses=[proxy, trains]).lingers is lingers


def test_an_exit_carries_code_reason_message_and_time() -> None:
    ended = {
        "exitCode": 137,
        "reason": "OOMKilled",
        "message": "too big",
        "finishedAt": "2026-11-21T10:00:00Z",
    }
    pod = _seen(phase="Failed", **objects.container(terminated=ended))
    moment = datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)
    assert pod.exit == observation.Exit(137, "OOMKilled", "too big", moment)
    assert not pod.disrupted


@pytest.mark.parametrize(
    ("text", "moment"),
    [
        ("10000-01-01T00:59:59Z", None),
        ("0000-01-01T00:00:00Z", None),
        ("9999-12-31T23:59:59-14:00", None),
        ("2026-11-21T23:59:60Z", None),
        ("yesterday", None),
        ("", None),
        (None, None),
        ("2026-11-21T10:00:00", datetime.datetime(2026, 11, 21, 10, tzinfo=datetime.UTC)),
        ("2026-11-21T12:00:00.123456789+02:00", TENTH),
        ("2026-11-21T10:00:00.123456Z", TENTH),
    ],
)
def test_a_time_without_meaning_is_none(text: str | None, moment: datetime.datetime | None) -> None:
    """The API server stores any that Go reads, and writes years of five digits."""
    ended = {"exitCode": 1, "reason": "Error", "finishedAt": text}
    pod = _seen(phase="Failed", **objects.container(terminated=ended))
    assert pod.exit == observation.Exit(1, "Error", "", moment)
    deleted = objects.pod()
    deleted["metadata"]["deletionTimestamp"] = text
    assert records.delete_by(deleted) == moment


@pytest.mark.parametrize(("code", "phase"), [(0, PHASE.SUCCEEDED), (1, PHASE.FAILED)])
@pytest.mark.parametrize("now", [{"running": {}}, {"waiting": {"reason": "CrashLoopBackOff"}}])
def test_a_container_that_the_kubelet_started_again_has_ended(
    now: dict[str, Any], code: int, phase: observation.Phase
) -> None:
    ended = {"terminated": {"exitCode": code, "reason": "Error"}}
    container = {"name": names.CONTAINER, "state": now, "lastState": ended, "restartCount": 1}
    pod = _seen(phase="Running", containerStatuses=[container])
    assert pod.phase is phase
    assert pod.exit == observation.Exit(code, "Error", "", None, restarted=True)
    assert pod.lingers == ("running" in now)


def test_an_evicted_pod_keeps_the_words_of_its_node() -> None:
    pod = _seen(phase="Failed", reason="Evicted", message="low on memory")
    assert pod.exit == observation.Exit(-1, "Evicted", "low on memory", None)
    assert (pod.reason, pod.message) == ("Evicted", "low on memory")


def test_a_disruption_target_is_seen_while_the_pod_still_runs() -> None:
    condition = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
    pod = _seen(phase="Running", conditions=[{**condition, "message": "preempting"}])
    assert (pod.disrupted, pod.reason, pod.message) == (True, condition["reason"], "preempting")
    assert not _seen(phase="Running", conditions=[{**condition, "status": "False"}]).disrupted


@pytest.mark.parametrize(
    ("status", "reason"),
    [
        (
            objects.container(waiting={"reason": "ImagePullBackOff", "message": "no such image"}),
            "ImagePullBackOff: no such image",
        ),
        (objects.container(waiting={"reason": "ContainerCreating"}), ""),
        (
            {
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/4 nodes are available",
                    }
                ]
            },
            "Unschedulable: 0/4 nodes are available",
        ),
        ({"conditions": [{"type": "PodScheduled", "status": "True"}]}, ""),
    ],
)
def test_a_pending_pod_says_why_it_waits(status: dict[str, Any], reason: str) -> None:
    assert _seen(phase="Pending", **status).waiting == reason


def test_an_init_container_that_cannot_start_is_why_a_pod_waits() -> None:
    status = {"name": "init", "state": {"waiting": {"reason": "ErrImagePull", "message": "gone"}}}
    assert _seen(phase="Pending", initContainerStatuses=[status]).waiting == "ErrImagePull: gone"


def _ended_by(name: str, code: int, **status: Any) -> observation.Exit:
    ended = {"exitCode": code, "reason": "Error", "message": "no such package", "finishedAt": AT}
    init = {"name": name, "state": {"terminated": ended}}
    main = objects.container(waiting={"reason": "PodInitializing"})
    done = {"name": "first", "state": {"terminated": {"exitCode": 0}}}
    pod = _seen(phase="Failed", initContainerStatuses=[done, init], **main, **status)
    assert pod.phase is PHASE.FAILED
    assert pod.exit is not None
    return pod.exit


AT = "2026-11-21T10:00:00Z"


def test_the_exit_of_the_source_is_that_of_the_pod() -> None:
    at = datetime.datetime.fromisoformat(AT)
    expected = observation.Exit(78, "Error", "no such package", at, of_source=True)
    assert _ended_by(names.SOURCE_CONTAINER, 78) == expected


def test_an_init_container_of_a_template_is_named_and_its_code_means_nothing() -> None:
    ended = _ended_by("fetch", 78)
    assert (ended.code, ended.of_source) == (-1, False)
    assert ended.message == "init container fetch, code 78 no such package"


def test_a_sidecar_that_ends_with_its_pod_is_not_why_the_pod_ended() -> None:
    ended = {"exitCode": 143, "reason": "Error"}
    statuses = [
        {"name": "proxy", "state": {"terminated": ended}},
        {"name": "fetch", "state": {"terminated": {**ended, "exitCode": 3}}},
    ]
    raw = objects.pod(phase="Failed", initContainerStatuses=statuses)
    raw["spec"] = {"initContainers": [{"name": "proxy", "restartPolicy": "Always"}]}
    pod = records.pod(raw)
    assert pod is not None
    assert pod.exit is not None
    assert pod.exit.message.startswith("init container fetch, code 3")


def test_a_pod_that_was_evicted_while_its_source_was_fetched_was_evicted() -> None:
    ended = _ended_by(names.SOURCE_CONTAINER, 137, reason="Evicted", message="low on memory")
    assert (ended.code, ended.reason, ended.of_source) == (-1, "Evicted", False)


def test_of_a_status_beyond_the_limits_the_phase_counts_alone() -> None:
    """Whoever may write statuses may store some of a megabyte."""
    ended = objects.container(terminated={"exitCode": 1})
    large = [{"type": "x" * gate.MAX_TEXT_LETTERS}] * 40
    many = [{"type": "x"}] * gate.MAX_VALUES
    for conditions, problem in ((large, "it has 16"), (many, "has more than 20000 fields")):
        for phase in (PHASE.RUNNING, PHASE.SUCCEEDED, PHASE.FAILED, PHASE.PENDING):
            assert _seen(phase=phase.value, conditions=conditions, **ended).phase is phase
        reason = _seen(phase="Pending", conditions=conditions).waiting
        assert reason.startswith("the pod's status") and problem in reason


def test_a_long_message_hides_no_exit_code() -> None:
    ended = {"exitCode": 3, "reason": "Error", "message": "x" * gate.MAX_STATUS_BYTES}
    pod = _seen(phase="Failed", **objects.container(terminated=ended))
    assert pod.exit == observation.Exit(3, "Error", "x" * gate.MAX_TEXT_LETTERS, None)


def test_of_long_texts_in_a_status_a_part_is_kept() -> None:
    """A namespace may have thousands of pods with them."""
    text = "x" * 30_000
    ended = {"exitCode": 1, "reason": text, "message": text}
    sentences = {"reason": text, "message": text}
    init = {"name": "fetch", "state": {"terminated": ended}}
    pods = [
        _seen(phase="Failed", **objects.container(terminated=ended), **sentences),
        _seen(phase="Failed", **sentences),
        _seen(phase="Failed", initContainerStatuses=[init]),
        _seen(phase="Pending", **objects.container(waiting=sentences)),
        _seen(
            phase="Running",
            conditions=[{"type": "DisruptionTarget", "status": "True", **sentences}],
        ),
    ]
    for pod in pods:
        texts = [pod.reason, pod.message, pod.waiting]
        texts += [pod.exit.reason, pod.exit.message] if pod.exit else []
        assert max(map(len, texts)) == gate.MAX_TEXT_LETTERS


def test_a_program_that_ends_with_control_characters_has_ended() -> None:
    message = "1/2\x08\x08\x1b[0m"
    ended = {"exitCode": 3, "reason": "Error", "message": message}
    pod = _seen(phase="Failed", **objects.container(terminated=ended))
    assert pod.exit == observation.Exit(3, "Error", message, None)


def test_long_references_and_many_finalizers_are_not_kept() -> None:
    raw = objects.pod()
    for field in ("uid", "name"):
        raw["metadata"]["ownerReferences"] = [objects.owner() | {field: "x" * 254}]
        assert records.owner(raw) is None
    raw["metadata"]["finalizers"] = [f"example.com/{number}" for number in range(10_000)]
    assert len(records.finalizers(raw)) == 16


def test_only_the_controlling_job_is_the_owner() -> None:
    raw = objects.pod()
    assert records.owner(raw) == records.Owner("default", "digits", objects.UID)
    raw["metadata"]["ownerReferences"][0]["controller"] = False
    assert records.owner(raw) is None
    foreign = {**objects.owner(), "apiVersion": "kubeflow.org/v1"}
    raw["metadata"]["ownerReferences"] = [foreign]
    assert records.owner(raw) is None
    del raw["metadata"]["ownerReferences"]
    assert records.owner(raw) is None


def test_a_deletion_timestamp_is_seen() -> None:
    raw = objects.pod(phase="Running")
    raw["metadata"]["deletionTimestamp"] = "2026-11-21T10:00:00Z"
    pod = records.pod(raw)
    assert pod is not None
    assert pod.deleting


def test_of_annotations_that_people_made_long_a_part_is_kept() -> None:
    """As many ConfigMaps with them as a namespace may have would fill the memory."""
    annotations = (names.ANNOTATION_CONTENT, names.ANNOTATION_INSTALLATION)
    raw = {
        "metadata": {
            "name": "digits-tfparallel",
            "uid": "u",
            "annotations": dict.fromkeys((*annotations, names.ANNOTATION_QUESTION), "x" * 80_000),
        }
    }
    config = records.config(raw)
    assert config is not None
    kept = (config.fingerprint, config.installation, config.question)
    assert max(map(len, kept)) < 1_000
