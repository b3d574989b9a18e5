"""Two installations over one job: one acts; the other asks, leaves the job alone, or takes over."""

import dataclasses
import datetime

import pytest

from testing.operator import builders
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import decision, observation
from tfparallel_operator.core.life import rival_installations
from tfparallel_operator.core.status import conditions

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
    assert decided.wake_at == world.now + rival_installations.ANSWER_TIME


def test_an_answer_is_waited_for_and_then_the_job_is_taken_over() -> None:
    world = _world(OTHER)
    world.exit("job-worker-1", 1)
    assert world.config is not None
    almost = rival_installations.ANSWER_TIME - SECOND
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
    almost = rival_installations.ASK_AGAIN - SECOND
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


def _contested(world: builders.World) -> job_status.Condition | None:
    """The condition that a decision writes; it is part of the world from then on."""
    decided = world.decide()
    world.job = world.job.model_copy(update={"status": decided.status})
    return conditions.find(world.status, names.ConditionType.CONTESTED)


def _ask(world: builders.World, state: str, asker: str = OTHER) -> None:
    assert world.config is not None
    question = f"{asker} {state} {world.now.isoformat()}"
    world.config = dataclasses.replace(world.config, question=question)


def test_who_acts_says_once_that_another_one_asks_and_no_longer_when_it_is_gone() -> None:
    world = _world(OURS)
    assert _contested(world) is None
    _ask(world, "asked")
    condition = _contested(world)
    assert condition is not None
    assert (condition.status, condition.reason) == ("True", "OtherInstallation")
    assert f"installation {OTHER} of the operator watches this job, too" in condition.message
    for _ in range(3):
        _ask(world, "answered")
        assert _contested(world) == condition
        world.now += rival_installations.ASK_AGAIN
        _ask(world, "asked")
        assert _contested(world) == condition, "the status is not written again"
    world.now += rival_installations.CONTESTED_FOR - SECOND
    assert world.decide().wake_at == world.now + SECOND
    assert _contested(world) == condition
    world.now += SECOND
    assert _contested(world) is None


@pytest.mark.parametrize("asker", ["", OURS])
def test_nobody_else_contests_a_job(asker: str) -> None:
    world = _world(OURS)
    _ask(world, "asked", asker)
    assert _contested(world) is None


def test_a_question_of_a_time_to_come_is_of_nobody() -> None:
    world = _world(OURS, f"{OTHER} asked 2999-01-01T00:00:00+00:00")
    assert _contested(world) is None


def test_who_takes_a_job_over_no_longer_says_that_another_one_is_there() -> None:
    world = _world(OURS)
    _ask(world, "asked")
    assert _contested(world) is not None
    world.settings = dataclasses.replace(world.settings, installation=OTHER)
    world.now += rival_installations.ANSWER_TIME
    assert _contested(world) is None


def test_an_installation_without_a_name_knows_no_others() -> None:
    world = _world(OTHER)
    world.settings = dataclasses.replace(world.settings, installation="")
    config = observation.Config("job-tfparallel", "uid", "", OTHER)
    assert rival_installations.may_act(config, world.settings, world.now)
    config = dataclasses.replace(config, question=f"{OURS} asked {world.now.isoformat()}")
    decided, stamp = decision.Decision(world.status), conditions.Stamp(world.now, 1)
    assert rival_installations.respond(decided, config, world.settings, stamp) == decided
