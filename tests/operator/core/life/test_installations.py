"""Two installations over one job: one acts; the other asks, leaves the job alone, or takes over."""

import dataclasses
import datetime

import pytest

from testing.operator import builders
from tfparallel_operator.api import names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import installations

OURS, OTHER = "team/operator", "system/operator"
SECOND = datetime.timedelta(seconds=1)


def _world(installation: str, question: str = "") -> builders.World:
    """A job that runs, as the installation OURS sees it."""
    world = builders.a_world(worker=2)
    world.settings = dataclasses.replace(world.settings, installation=OURS)
    assert world.config is not None
    world.config = dataclasses.replace(world.config, installation=installation, question=question)
    return world


def _question(decided: decision.Decision) -> str | None:
    """The question that a decision writes, and nothing else."""
    assert not decided.creations and not decided.deletions
    [change] = decided.changes
    assert change.type == decision.CONFIG_MAP
    assert change.fields.keys() == {"metadata"}
    annotations: dict[str, str] = change.fields["metadata"]["annotations"]
    assert annotations.keys() == {names.ANNOTATION_QUESTION}
    return annotations[names.ANNOTATION_QUESTION]


def _asked(world: builders.World, state: str, ago: datetime.timedelta) -> str:
    return f"{OURS} {state} {(world.now - ago).isoformat()}"


@pytest.mark.parametrize("installation", ["", OURS])
def test_a_job_of_ours_or_of_an_older_release_is_acted_on(installation: str) -> None:
    world = _world(installation)
    world.exit("job-worker-1", 1)
    assert world.decide().status.attempt == 2


@pytest.mark.parametrize(
    "question",
    [
        "",
        f"{OTHER} asked 2026-11-20T10:00:00+00:00",
        f"{OURS} asked tomorrow",
        f"{OURS} asked",
        f"{OURS} asked 9999-12-31T23:59:59+00:00",
        f"{OURS} asked 9999-12-31T23:59:59-14:00",
        f"{OURS} answered 2999-01-01T00:00:00",
        f"{OURS} asked 0001-01-01T00:00:00+14:00",
        "x",
    ],
)
def test_another_installation_is_asked_and_nothing_else_is_written(question: str) -> None:
    world = _world(OTHER, question)
    world.exit("job-worker-1", 1)
    decided = world.decide()
    assert decided.status == world.status
    assert _question(decided) == _asked(world, "asked", ago=datetime.timedelta())
    assert decided.wake_at == world.now + installations.ANSWER_TIME


def test_an_answer_is_waited_for_and_then_the_job_is_taken_over() -> None:
    world = _world(OTHER)
    world.exit("job-worker-1", 1)
    assert world.config is not None
    almost = installations.ANSWER_TIME - SECOND
    world.config = dataclasses.replace(world.config, question=_asked(world, "asked", almost))
    assert world.decide() == decision.Decision(world.status, wake_at=world.now + SECOND)
    world.now += SECOND
    decided = world.decide()
    assert decided.status.attempt == 2
    [change] = decided.changes
    assert change.fields["metadata"]["annotations"] == {
        names.ANNOTATION_CONTENT: world.config.fingerprint,
        names.ANNOTATION_INSTALLATION: OURS,
        names.ANNOTATION_QUESTION: None,
    }


def test_who_has_its_answer_leaves_the_job_alone_and_says_so() -> None:
    world = _world(OTHER)
    world.exit("job-worker-1", 1)
    assert world.config is not None
    almost = installations.ASK_AGAIN - SECOND
    world.config = dataclasses.replace(world.config, question=_asked(world, "answered", almost))
    decided = world.decide()
    [notice] = decided.notices
    assert notice.reason == names.Reason.OTHER_INSTALLATION
    assert OURS in notice.message and OTHER in notice.message
    assert decided == decision.Decision(world.status, notices=(notice,), wake_at=world.now + SECOND)
    world.now += SECOND
    assert _question(world.decide()) == _asked(world, "asked", ago=datetime.timedelta())


def test_who_acts_answers_once() -> None:
    world = _world(OURS, f"{OTHER} asked 2026-11-20T10:00:00+00:00")
    answer = _question(world.decide())
    assert answer == f"{OTHER} answered 2026-11-20T10:00:00+00:00"
    assert world.config is not None
    world.config = dataclasses.replace(world.config, question=answer)
    assert world.decide().changes == ()


def test_an_installation_without_a_name_knows_no_others() -> None:
    world = _world(OTHER)
    world.settings = dataclasses.replace(world.settings, installation="")
    config = observation.Config("job-tfparallel", "uid", "", OTHER)
    assert installations.may_act(config, world.settings, world.now)
    assert installations.answer(config, world.settings) == ()
