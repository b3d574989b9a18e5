"""What a job's status says of replicas that train separate models."""

from testing.operator import builders
from tfparallel_operator.api import job_status, names, types
from tfparallel_operator.core import decision, replicas
from tfparallel_operator.core.status import conditions
from tfparallel_trainer.contract import environment, progress, separate_training

SEEN = separate_training.SeparateTraining(
    replica="worker-0", peers=1, method="fit", place="train.py, line 3"
)


def report(world: builders.World, sent: progress.Report) -> None:
    reports = job_status.of_report(sent, world.now)
    changed = world.status.model_copy(update=reports._asdict())
    world.job = world.job.model_copy(update={"status": changed})


def test_a_report_becomes_a_condition_that_outlives_the_job_and_not_the_attempt() -> None:
    world = builders.running(worker=2)
    world.advance(5)
    report(world, progress.Report(step=0, separate_training=SEEN))
    assert world.status.progress is None
    [event] = world.decide().events
    assert (event.type, event.reason) == (decision.EventType.WARNING, names.Reason.SEPARATE_MODELS)
    assert event.message == (
        "worker-0 trains a model of its own (train.py, line 3): TF_CONFIG gives it 1 peer, and"
        " Keras' fit shares nothing with them. Call tfparallel_trainer.start() right after the"
        " imports, and call tfparallel_trainer.fit there"
    )
    world.run_until_quiet()
    assert world.decide().events == ()
    assert conditions.is_true(world.status, names.ConditionType.SEPARATE_TRAINING)
    assert world.status.state == "Running"
    world.exit("job-worker-1", 137).run_until_quiet()
    assert world.status.attempt == 2
    assert conditions.find(world.status, names.ConditionType.SEPARATE_TRAINING) is None
    world.run()
    world.advance(5)
    report(world, progress.Report(step=0, separate_training=SEEN))
    world.run_until_quiet()
    world.exit("job-worker-0", 0)
    world.exit("job-worker-1", 0).run_until_quiet()
    assert world.status.state == "Succeeded"
    assert conditions.is_true(world.status, names.ConditionType.SEPARATE_TRAINING)


def test_progress_takes_its_place_and_a_report_of_nonsense_counts_as_none() -> None:
    reports = job_status.of_report(progress.Report(step=3), builders.START)
    assert (reports.separate_training, reports.progress is None) == (None, False)
    status = job_status.JobStatus.model_validate({"separateTraining": {"peers": -1}})
    assert status.separate_training is None


def test_pods_of_scripts_are_told_what_to_do_and_those_of_the_trainer_are_not() -> None:
    replica = replicas.Replica(types.Role.WORKER, 1)
    for job, value in (
        (builders.a_job(worker=2), "Stop"),
        (builders.a_job(worker=2, spec={"onSeparateTraining": "Continue"}), "Continue"),
        (builders.a_job(worker=2, trainer=True), None),
    ):
        [container] = builders.a_pod(job, replica)["spec"]["containers"]
        variables = {variable["name"]: variable.get("value") for variable in container["env"]}
        assert variables.get(environment.ON_SEPARATE_TRAINING) == value
