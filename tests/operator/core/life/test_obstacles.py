"""What is said of objects that have the names which a job needs."""

import dataclasses
import datetime

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import remedies
from tfparallel_operator.core.life import dead_nodes, obstacles
from tfparallel_operator.core.status import conditions

NOW = builders.START
OTHER = obstacles.Holder("service/job", obstacles.Whose.OTHER)
TFJOB = obstacles.Holder("pod/job-chief-0", obstacles.Whose.TFJOB)
UNLABELED = obstacles.Holder("pod/job-chief-0", obstacles.Whose.UNLABELED)
LEAVING = obstacles.Holder(
    "pod/job-worker-0", obstacles.Whose.EARLIER, deleting=True, delete_by=NOW, node="n1"
)
KEPT = dataclasses.replace(LEAVING, finalizers=("example.com/a", "example.com/b"))
LOST = dataclasses.replace(LEAVING, delete_by=NOW - obstacles.STUCK_AFTER)


@pytest.mark.parametrize(
    ("holder", "reason", "remedy"),
    [
        (OTHER, names.Reason.NAME_CONFLICT, "`kubectl delete service/job`"),
        (TFJOB, names.Reason.NAME_CONFLICT, "Delete the TFJob"),
        (UNLABELED, names.Reason.NAME_CONFLICT, "`kubectl delete pod/job-chief-0`"),
        (KEPT, names.Reason.DELETION_STUCK, "finalizer example.com/a,example.com/b remove it"),
        (LOST, names.Reason.DELETION_STUCK, "`kubectl delete node n1`"),
        (LEAVING, names.Reason.NAME_HELD, "Wait: the job continues"),
        (
            dataclasses.replace(OTHER, deleting=True, delete_by=NOW),
            names.Reason.NAME_HELD,
            "Wait: the job continues",
        ),
    ],
)
def test_whoever_has_a_name_there_is_something_to_do(
    holder: obstacles.Holder, reason: names.Reason, remedy: str
) -> None:
    refusal = obstacles.explain([holder], NOW)
    assert (refusal.reason, refusal.final) == (reason, False)
    assert refusal.objects == (holder.object,)
    explanation = obstacles.describe(refusal)
    assert holder.object in explanation.sentence
    assert remedy in explanation.remedy


def test_what_a_person_has_to_do_something_about_comes_first() -> None:
    holders = [LEAVING, LOST, KEPT, UNLABELED, TFJOB, OTHER]
    reasons = []
    while holders:
        reasons.append(obstacles.explain(holders, NOW).reason)
        holders.pop()
    assert reasons == [
        *[names.Reason.NAME_CONFLICT] * 3,
        *[names.Reason.DELETION_STUCK] * 2,
        names.Reason.NAME_HELD,
    ]


def test_a_sentence_with_many_objects_is_bounded_and_keeps_its_command() -> None:
    holders = [
        obstacles.Holder(f"pod/{'long' * 12}-worker-{index}", obstacles.Whose.OTHER)
        for index in range(200)
    ]
    explanation = obstacles.describe(obstacles.explain(holders, NOW))
    assert len(explanation.sentence) <= remedies.LONGEST_WORDS
    assert " more." in explanation.sentence
    assert explanation.remedy.startswith("Delete them: `kubectl delete pod/long")
    assert "more" not in explanation.remedy
    assert len(explanation.remedy) <= conditions.REMEDY_BYTES


def test_a_job_looks_again_when_a_deletion_is_late() -> None:
    pod = next(iter(builders.a_world(worker=1).pods.values()))
    ends = NOW + datetime.timedelta(seconds=30)
    leaving = dataclasses.replace(pod, deleting=True, delete_by=ends, node="n1")
    kept = dataclasses.replace(leaving, finalizers=("example.com/a",))
    assert obstacles.find_stuck([leaving], NOW) == (None, ends + obstacles.STUCK_AFTER)
    assert obstacles.find_stuck([leaving, kept], NOW) == (None, ends)
    refusal, _ = obstacles.find_stuck([leaving, kept], ends)
    assert refusal is not None
    assert refusal.objects == (f"pod/{pod.name}",)
    assert obstacles.find_stuck([pod], ends) == (None, None)


def test_force_does_not_end_what_a_finalizer_keeps() -> None:
    pod = next(iter(builders.a_world(worker=1).pods.values()))
    overdue = dataclasses.replace(
        pod, deleting=True, delete_by=NOW - dead_nodes.PATIENCE, node="n1"
    )
    kept = dataclasses.replace(overdue, finalizers=("example.com/a",))
    assert dead_nodes.force_deletions((kept,), NOW) == ((), None)
    deletions, look_again_at = dead_nodes.force_deletions((overdue,), NOW)
    assert [deletion.force_from for deletion in deletions] == ["n1"]
    assert look_again_at == NOW + dead_nodes.RETRY
