"""Where the time of a job went: each second belongs to one activity."""

import datetime
from typing import Any

import yaml

from testing import pages, paths
from testing.operator import builders, goodput_reports, queues
from tfparallel_operator.api import job_status, names
from tfparallel_operator.core import observation
from tfparallel_operator.core.status import goodput
from tfparallel_trainer.contract import progress

RUN = progress.RunSeconds(training=20, input_wait=4, evaluating=3, checkpointing=2, recomputing=1)


def created(seconds: float = -10, **job: Any) -> builders.World:
    """Return a job that was created some seconds from the start of the clock."""
    job_object = builders.a_job(**job)
    moment = builders.START + datetime.timedelta(seconds=seconds)
    metadata = job_object.metadata.model_copy(update={"creation_timestamp": moment.isoformat()})
    return builders.World(job_object.model_copy(update={"metadata": metadata}))


def measure(world: builders.World) -> dict[str, int]:
    """Return the activities that took time."""
    measured = goodput.measure(world.status, world.now)
    assert measured is not None
    return {key.value: seconds for key, seconds in measured.seconds.items() if seconds}


def run_after(world: builders.World, scheduled: int, started: int, ready: int) -> None:
    """Let the pods run some seconds from now, with times as a cluster shows them."""
    began = world.now
    world.advance(ready)
    for name in list(world.pods):
        world.update(
            name,
            scheduled_at=began + datetime.timedelta(seconds=scheduled),
            started_at=began + datetime.timedelta(seconds=started),
        )
    world.run().run_until_quiet()


def test_the_start_of_a_job_is_divided_by_the_times_of_its_pods() -> None:
    world = created(worker=2, trainer=True)
    world.run_until_quiet()
    assert measure(world) == {"queued": 10}
    world.advance(5)
    assert measure(world) == {"queued": 10, "scheduling": 5}
    run_after(world, scheduled=2, started=7, ready=8)
    assert measure(world) == {"queued": 10, "scheduling": 7, "pulling": 5, "starting": 1}


def test_reports_divide_the_time_since_all_replicas_run() -> None:
    world = builders.running(worker=2, trainer=True)
    world.advance(40)
    before = world.status
    assert measure(world) == {"starting": 40}
    goodput_reports.report(world, RUN)
    expected = {
        "starting": 10,
        "training": 20,
        "inputWait": 4,
        "evaluating": 3,
        "checkpointing": 2,
        "recomputing": 1,
    }
    assert measure(world) == expected
    world.advance(6)
    assert measure(world) == {**expected, "training": 26}
    assert world.decide().status.goodput == before.goodput, "a report leads to no write"
    measured = goodput.measure(world.status, world.now)
    assert measured is not None
    assert (measured.age, measured.activity) == (46, names.Activity.TRAINING)
    assert measured.share == 26 / 46


def test_from_a_loss_to_the_next_first_step_a_job_restarts() -> None:
    world = builders.running(worker=2, trainer=True)
    world.advance(30)
    goodput_reports.report(world, progress.RunSeconds(training=30))
    world.advance(5)
    world.exit("job-worker-1", 137).run_until_quiet()
    assert world.status.attempt == 2
    world.advance(9)
    assert measure(world) == {"training": 35, "restarting": 9}
    world.run().run_until_quiet()
    world.advance(8)
    assert measure(world) == {"training": 35, "restarting": 17}
    goodput_reports.report(world, progress.RunSeconds(training=1, recomputing=3))
    assert measure(world) == {"training": 36, "restarting": 13, "recomputing": 3}
    world.advance(2)
    world.exit("job-worker-0", 137).run_until_quiet()
    world.advance(1)
    activities = measure(world)
    assert (activities["training"], activities["recomputing"]) == (38, 3)


def test_a_suspended_job_and_one_that_waits_for_quota() -> None:
    world = builders.running(worker=1, trainer=True)
    world.edit(suspend=True).run_until_quiet()
    world.advance(60)
    assert measure(world) == {"suspended": 60}
    world.edit(suspend=False).run_until_quiet()
    world.advance(3)
    assert measure(world) == {"suspended": 60, "scheduling": 3}
    queued = queues.queued_world(worker=1)
    queued.advance(20)
    assert measure(queued) == {"queued": 20}
    queues.admit(queued)
    queued.advance(2)
    assert measure(queued) == {"queued": 20, "scheduling": 2}


def test_an_end_ends_the_age() -> None:
    world = builders.running(worker=1, trainer=True)
    world.advance(7)
    goodput_reports.report(world, progress.RunSeconds(training=5))
    world.advance(1)
    world.exit("job-worker-0", 0).run_until_quiet()
    world.advance(1000)
    assert measure(world) == {"starting": 2, "training": 6}
    measured = goodput.measure(world.status, world.now)
    assert measured is not None
    assert measured.activity is None


def test_a_job_without_an_operator_ends_at_its_last_report() -> None:
    world = builders.running(worker=1, trainer=True)
    world.advance(30)
    goodput_reports.report(world, progress.RunSeconds(training=20))
    ended = goodput.end_at_known_time(world.status)
    world.advance(1000)
    measured = goodput.measure(ended, world.now)
    assert measured is not None
    assert (measured.age, measured.activity) == (30, None)
    assert measured.seconds[names.Activity.TRAINING] == 20
    assert goodput.end_at_known_time(ended) == ended
    unknown = world.status.model_copy(update={"goodput": None})
    assert goodput.end_at_known_time(unknown) == unknown


def test_a_script_and_an_old_trainer_train_as_soon_as_all_replicas_run() -> None:
    script = builders.running(worker=1)
    script.advance(9)
    assert measure(script) == {"training": 9}
    old = builders.running(worker=1, trainer=True)
    old.advance(9)
    goodput_reports.report(old, None)
    assert measure(old) == {"training": 9}


def test_a_job_of_an_older_operator_costs_no_write_and_counts_from_its_creation() -> None:
    world = builders.running(worker=1, trainer=True)
    status = world.status.model_copy(update={"goodput": None})
    moment = (builders.START - datetime.timedelta(seconds=4)).isoformat()
    metadata = world.job.metadata.model_copy(update={"creation_timestamp": moment})
    world.job = world.job.model_copy(update={"status": status, "metadata": metadata})
    assert goodput.measure(world.status, world.now) is None
    assert world.decide().status == status
    world.advance(50)
    world.exit("job-worker-0", 1).run_until_quiet()
    assert measure(world) == {"queued": 4, "starting": 50}


def test_a_replica_that_restarts_alone_leaves_the_time_of_the_others_divided() -> None:
    world = builders.running(chief=1, worker=2, ps=1, trainer=True)
    world.advance(60)
    goodput_reports.report(world, progress.RunSeconds(training=40, input_wait=20))
    assert measure(world) == {"training": 40, "inputWait": 20}
    world.exit("job-worker-1", 137).exit("job-worker-0", 137).run_until_quiet()
    pause = round((world.now - builders.START).total_seconds()) - 60
    assert measure(world) == {"training": 40, "inputWait": 20, "restarting": pause}
    world.run().run_until_quiet()
    world.advance(9)
    goodput_reports.report(world, progress.RunSeconds(training=52, input_wait=26))
    assert measure(world) == {"training": 46, "inputWait": 23, "restarting": pause}


def test_a_clock_that_is_set_back_takes_nothing_away() -> None:
    world = builders.running(worker=1, trainer=True)
    world.advance(30)
    goodput_reports.report(world, progress.RunSeconds(training=30))
    world.advance(-4000)
    before = measure(world)
    world.exit("job-worker-0", 137).run_until_quiet()
    assert sum(measure(world).values()) == sum(before.values()) == 0
    world.advance(4000)
    assert sum(measure(world).values()) == 30


def test_a_phase_of_a_newer_operator_counts_as_such() -> None:
    recorded = job_status.GoodputStatus.model_validate(
        {"phase": "defragmenting", "since": builders.START.isoformat(), "seconds": {"queued": 3}}
    )
    status = job_status.JobStatus(goodput=recorded)
    measured = goodput.measure(status, builders.START + datetime.timedelta(seconds=4))
    assert measured is not None
    assert measured.activity == "defragmenting"
    assert measured.seconds[names.Activity.QUEUED] == 3


def test_pods_that_say_no_time_leave_the_start_undivided() -> None:
    world = created(0, worker=2, trainer=True)
    world.run_until_quiet()
    world.advance(6)
    world.update("job-worker-0", scheduled_at=world.now, phase=observation.Phase.RUNNING)
    world.edit(suspend=True).run_until_quiet()
    assert measure(world) == {"scheduling": 6}


def test_the_page_lists_every_activity_and_its_example_adds_up() -> None:
    listed = [row[0].strip("`") for row in pages.rows("explanation/life.md", "<!-- activities -->")]
    assert listed == [activity.value for activity in names.Activity]
    page = (paths.PAGES / "explanation/life.md").read_text(encoding="utf-8")
    text = page.partition("<!-- example -->\n```yaml\n")[2].partition("```")[0]
    example = yaml.safe_load(text)
    status = job_status.JobStatus.model_validate(example["status"])
    now = datetime.datetime(2026, 11, 28, 10, 5, 2, tzinfo=datetime.UTC)
    measured = goodput.measure(status, now)
    assert measured is not None
    assert measured.age == 302
    assert measured.seconds[names.Activity.TRAINING] == 222
    assert measured.seconds[names.Activity.STARTING] == 1 + 10
    assert f"{measured.share:.0%}".replace("%", " %") in page
