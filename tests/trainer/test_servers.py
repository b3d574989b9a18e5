"""Asynchronous training with parameter servers, as real processes: what is exact stays exact."""

import json
import pathlib
import signal
import time

import keras
import numpy as np
import pytest

from testing.trainer import launch, reference, server_jobs, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.servers import presence

MANY = 100_000
"""Steps of a run that has to be there until it is ended."""


def changed(given: dict[str, str], **trainer: object) -> dict[str, str]:
    """An environment with a job file of its own, where `trainer` says something else."""
    file = pathlib.Path(given[environment.JOB_FILE])
    job = json.loads(file.read_text())
    own = file.with_name("changed.json")
    own.write_text(json.dumps({**job, "trainer": {**job["trainer"], **trainer}}))
    return {**given, environment.JOB_FILE: str(own)}


def test_it_trains_and_counts_exactly(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"epochs": 5, "globalBatchSize": 32, "maxStaleness": 1}
    started = launch.with_servers(tmp_path, server_jobs.EXAMPLE, trainer, workers=2, servers=2)
    with runs.group(list(started.values()), new=True) as group:
        ended = server_jobs.wait(group)
    assert [one.code for one in ended] == [0] * 5, ended
    assert "2 workers and 2 servers" in ended[0].output
    told = launch.summary(tmp_path)
    assert (told.steps, told.epochs) == (5 * 45, 5)
    metrics = {name: float(value) for name, value in told.metrics.items()}
    assert metrics["val_accuracy"] > 0.9
    for name, examples in (("accuracy", 1437), ("val_accuracy", 360)):
        # Float32 counts that lost an addition would not be whole, or pass the examples.
        assert metrics[name] * examples == pytest.approx(round(metrics[name] * examples), abs=1e-3)
        assert metrics[name] <= 1
    assert metrics["staleness_mean"] <= metrics["staleness_max"] <= 1
    assert metrics["dropped"] >= 0
    model = keras.models.load_model(tmp_path / "output" / outputs.MODEL)
    assert int(model.optimizer.iterations.value.numpy()) == 5 * 45
    x, y = reference.load("model", server_jobs.EXAMPLE).evaluation_data()
    _, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    assert accuracy == pytest.approx(metrics["val_accuracy"], abs=1e-6)


def test_one_worker_equals_one_process(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    with reference.floatx():
        module = reference.load("mlp")
        expected, losses = reference.train(module, 12, 20, 3)
    trainer: dict[str, object] = {
        "module": "mlp.py",
        "steps": 12,
        "globalBatchSize": 20,
        "seed": 3,
        "checkpoint": server_jobs.CHECKPOINT,
    }
    started = launch.with_servers(tmp_path, reference.MODELS, trainer, workers=1, servers=2)
    with runs.group(list(started.values())) as group:
        ended = server_jobs.wait(group)
    assert [one.code for one in ended] == [0] * 4, ended
    difference = weights.run_difference(tmp_path, expected)
    print(f"one worker, two servers: largest difference of a weight {difference:.1e}")
    assert difference <= 1e-10
    told = launch.summary(tmp_path).metrics
    means = np.average(losses[9:], weights=(20, 20, 12))
    assert float(told["loss"]) == pytest.approx(means, abs=1e-10)
    assert told["staleness_max"] == 0


def test_whoever_is_lost(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {
        "module": "slow_stream.py",
        "steps": MANY,
        "globalBatchSize": 20,
        "checkpoint": server_jobs.CHECKPOINT,
    }
    started = launch.with_servers(tmp_path, reference.MODELS, trainer)

    def start(*names: str) -> launch.Group:
        return runs.group([started[name] for name in names])

    with start("chief-0", "ps-0") as first, start("worker-0") as steady:
        with start("worker-1") as lost:
            first.wait_for_output(0, "] step ")
            lost.processes[0].send_signal(signal.SIGKILL)
            first.wait_for_output(0, "worker-1 is gone")
        with start("worker-1") as back:
            first.wait_for_output(0, "worker-1 is back")
            first.wait_for_output(0, "worker-1 makes steps again")
            server_jobs.until(lambda: server_jobs.newest_checkpoint(tmp_path) > 0, "a checkpoint")

            first.processes[1].send_signal(signal.SIGKILL)
            killed = time.monotonic()
            assert first.processes[0].wait(20) == exits.Exit.PEER_LOST, first.result(0)
            print(f"a lost server ended the chief after {time.monotonic() - killed:.1f} s")
            assert time.monotonic() - killed < 10
            assert "ps-0" in first.result(0).errors

            with start("ps-0") as server:
                with start("chief-0") as second:
                    second.wait_for_output(0, "resuming after step")
                    second.wait_for_output(0, "] step ")
                    second.processes[0].send_signal(signal.SIGKILL)
                last = server_jobs.newest_checkpoint(tmp_path) + 30
                started["chief-0"] = changed(started["chief-0"], steps=last)
                with start("chief-0") as third:
                    ended = [server_jobs.wait(one)[0] for one in (third, server, steady, back)]
    assert [one.code for one in ended] == [0] * 4, ended
    assert "resuming after step" in ended[0].output
    told = launch.summary(tmp_path)
    assert told.steps == last
    assert told.steps_by_worker is not None
    assert set(told.steps_by_worker) == {"worker-0", "worker-1"}
    assert sum(told.steps_by_worker.values()) == 30, "those of this attempt"


def test_whoever_is_frozen(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"steps": MANY, "checkpoint": server_jobs.CHECKPOINT}
    started = launch.with_servers(tmp_path, server_jobs.EXAMPLE, trainer)
    environments = [started[name] for name in ("chief-0", "ps-0", "worker-0", "worker-1")]
    with runs.group(environments) as group:
        chief, server, _, worker = group.processes
        # Before each kind of operation has been used, TensorFlow waits for all workers.
        group.wait_for_output(0, "  epoch 2  ")
        worker.send_signal(signal.SIGSTOP)
        group.wait_for_output(0, "worker-1 has not asked for 30 s")
        saved = server_jobs.newest_checkpoint(tmp_path)
        server_jobs.until(
            lambda: server_jobs.newest_checkpoint(tmp_path) > saved, "training goes on without it"
        )
        worker.send_signal(signal.SIGCONT)
        group.wait_for_output(0, "worker-1 asks again")
        group.wait_for_output(0, "worker-1 makes steps again")

        server.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        assert chief.wait(60) == exits.Exit.PEER_LOST, group.result(0)
        print(f"a frozen server ended the chief after {time.monotonic() - frozen:.1f} s")
        assert time.monotonic() - frozen < presence.SILENCE_SECONDS + 10
        assert "ps-0" in group.result(0).errors
        with runs.group([started["chief-0"]], logs="second") as second:
            second.wait_for_output(0, "waiting for ps-0")
            server.send_signal(signal.SIGCONT)
            second.wait_for_output(0, "resuming after step")


def test_a_slow_worker_holds_up_nobody(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"epochs": 6, "globalBatchSize": 16}
    started = launch.with_servers(tmp_path, server_jobs.EXAMPLE, trainer)
    slow, *others = (started[name] for name in ("worker-1", "chief-0", "worker-0", "ps-0"))
    summary = tmp_path / "output" / outputs.SUMMARY
    with (
        runs.group([slow], logs="slow") as one,
        runs.group(others) as group,
    ):
        group.wait_for_output(0, "] step ")
        (worker,) = one.processes
        # The chief says only for some seconds after its summary that training is done.
        while group.processes[0].poll() is None and not summary.exists():
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.9)
            worker.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        ended = group.wait()
        assert one.wait()[0].code == 0
    assert [end.code for end in ended] == [0] * 3, ended
    steps_by_worker = launch.summary(tmp_path).steps_by_worker
    assert steps_by_worker is not None
    print(f"one of two workers stands still for nine tenths of the time: {steps_by_worker}")
    assert sum(steps_by_worker.values()) == 540
    assert 0 < 2 * steps_by_worker["worker-1"] < steps_by_worker["worker-0"]


def test_workers_are_added_by_a_restart_of_the_chief_alone(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    trainer: dict[str, object] = {
        "module": "slow_stream.py",
        "steps": MANY,
        "globalBatchSize": 20,
        "checkpoint": server_jobs.CHECKPOINT,
    }
    more = launch.with_servers(tmp_path, reference.MODELS, trainer, workers=3)
    fewer = {name: server_jobs.without(more[name], "worker", 2) for name in more}
    old = [fewer[name] for name in ("worker-0", "worker-1", "ps-0")]
    with runs.group(old, logs="others") as others:
        with runs.group([fewer["chief-0"]], logs="first") as first:
            first.wait_for_output(0, "2 workers and 1 servers")
            first.wait_for_output(0, "] step ")
            server_jobs.until(lambda: server_jobs.newest_checkpoint(tmp_path) > 0, "a checkpoint")
            first.processes[0].send_signal(signal.SIGTERM)
            assert first.wait()[0].code == exits.Exit.PREEMPTED
        last = server_jobs.newest_checkpoint(tmp_path) + 60
        with (
            runs.group([more["worker-2"]], logs="new") as new,
            runs.group([changed(more["chief-0"], steps=last)], logs="second") as second,
        ):
            ended = [*server_jobs.wait(second), *new.wait(20), *others.wait(20)]
    assert [one.code for one in ended] == [0] * 5, ended
    assert "3 workers and 1 servers" in ended[0].output
    assert "resuming after step" in ended[0].output
    told = launch.summary(tmp_path)
    assert told.steps == last
    assert told.steps_by_worker is not None
    print(f"steps after a third worker was added: {told.steps_by_worker}")
    assert min(told.steps_by_worker.values()) > 0
    assert len(told.steps_by_worker) == 3


def test_who_is_missing_is_named(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    trainer: dict[str, object] = {"epochs": 1, "startTimeoutSeconds": 3}
    codes = []
    for name, missing in (("chief-0", "worker-0"), ("ps-0", "chief-0")):
        started = launch.with_servers(tmp_path / name, server_jobs.EXAMPLE, trainer)
        with runs.group([started[name]], logs=name) as group:
            (ended,) = group.wait()
        assert f"waited 3 s (startTimeoutSeconds) for {missing}" in ended.errors
        codes.append(ended.code)
    assert codes == [exits.Exit.START_TIMEOUT] * 2


MISLABELLED = """
import keras
import numpy as np

def build_model():
    return keras.Sequential([keras.Input((400,)), keras.layers.Dense(400), keras.layers.Dense(3)])

def compile_model(model):
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))

def training_data():
    y = np.arange(640) % 3
    y[np.arange(640) % 50 == 7] = 9
    return np.ones((640, 400), "float32"), y
"""


def test_an_error_in_a_step_of_one_of_many_is_the_users(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(MISLABELLED)
    trainer: dict[str, object] = {"epochs": 1, "globalBatchSize": 16, "startTimeoutSeconds": 5}
    started = launch.with_servers(tmp_path, tmp_path, trainer)
    # The limit of the others is for a chief that has gone, not for one that has yet to start.
    patient = changed(started.pop("chief-0"), startTimeoutSeconds=600)
    with runs.group([patient], logs="chief") as chief:
        chief.wait_for_output(0, "waiting for ")
        with runs.group(list(started.values())) as others:
            (failed,) = chief.wait()
            ended = others.wait()
    assert failed.code == exits.Exit.USER_ERROR, failed
    last = failed.errors.rstrip().splitlines()[-1]
    assert "model.py: training raised InvalidArgumentError: " in last
    assert "label value of 9 which is outside the valid range" in last
    assert "See whether the data fits the model (labels within the classes" in last
    # The others have no part in it.
    assert {one.code for one in ended} == {exits.Exit.PEER_LOST}, ended
