"""Asynchronous training with parameter servers, as real processes: what is exact stays exact."""

import contextlib
import pathlib
import re
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import keras
import pytest

from testing import waiting
from testing.trainer import launch, reference, server_jobs, trainer_processes
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, outputs

SLOW_STREAM: dict[str, Any] = {
    "module": "slow_stream.py",
    "steps": launch.ENDLESS,
    "globalBatchSize": 20,
    "checkpoint": server_jobs.CHECKPOINT,
}


def test_it_trains_and_counts_exactly(runs: trainings.Runs) -> None:
    run = runs.finish_servers(
        source=server_jobs.EXAMPLE,
        workers=2,
        servers=2,
        epochs=5,
        globalBatchSize=32,
        maxStaleness=1,
    )
    assert "2 workers and 2 servers" in run.chief.output
    summary = run.summary
    assert (summary.steps, summary.epochs) == (5 * 45, 5)
    metrics = {name: float(value) for name, value in summary.metrics.items()}
    assert metrics["val_accuracy"] > 0.9
    for name, examples in (("accuracy", 1437), ("val_accuracy", 360)):
        # Float32 counts that lost an addition would not be whole, or pass the examples.
        assert metrics[name] * examples == pytest.approx(round(metrics[name] * examples), abs=1e-3)
        assert metrics[name] <= 1
    assert metrics["staleness_mean"] <= metrics["staleness_max"] <= 1
    assert metrics["dropped"] >= 0
    model = keras.models.load_model(run.output / outputs.MODEL)
    assert int(model.optimizer.iterations.value.numpy()) == 5 * 45
    x, y = reference.load("model", server_jobs.EXAMPLE).evaluation_data()
    _, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    assert accuracy == pytest.approx(metrics["val_accuracy"], abs=1e-6)


def test_a_lost_replica_comes_back_and_a_worker_joins(runs: trainings.Runs) -> None:
    """A worker is killed, then a server, then the chief; the chief is stopped, and returns with
    one more worker, while those that nobody touches go on."""
    names = runs.server_environments(**SLOW_STREAM, workers=3)
    fewer = {name: server_jobs.without(variables, "worker", 2) for name, variables in names.items()}

    def start(*names: str) -> launch.Group:
        return runs.group([fewer[name] for name in names])

    with start("chief-0", "ps-0") as first, start("worker-0") as steady:
        with start("worker-1") as lost:
            first.wait_for_output(0, "] step ")
            lost.processes[0].send_signal(signal.SIGKILL)
            first.wait_for_output(0, "worker-1 is gone")
        with start("worker-1") as back:
            first.wait_for_output(0, "worker-1 is back")
            first.wait_for_output(0, "worker-1 makes steps again")
            waiting.until(lambda: launch.newest(runs.folder) > 0, "a checkpoint")

            first.processes[1].send_signal(signal.SIGKILL)
            chief, _ = first.wait()
            assert chief.code == exits.Exit.PEER_LOST, chief
            # TensorFlow alone would try for minutes to reach it.
            assert "Lost ps-0 " in chief.errors
            assert "no longer listens" in chief.errors

            with start("ps-0") as server:
                with start("chief-0") as second:
                    second.wait_for_output(0, "resuming after step")
                    second.wait_for_output(0, "2 workers and 1 servers")
                    second.wait_for_output(0, "] step ")
                    second.processes[0].send_signal(signal.SIGKILL)
                with start("chief-0") as third:
                    third.wait_for_output(0, "] step ")
                    third.processes[0].send_signal(signal.SIGTERM)
                    assert third.wait()[0].code == exits.Exit.PREEMPTED
                last = launch.newest(runs.folder) + 60
                fourth = server_jobs.changed(names["chief-0"], steps=last)
                with (
                    runs.group([names["worker-2"]]) as added,
                    runs.group([fourth]) as chief_and_more,
                ):
                    (ended,) = chief_and_more.finish()
                    for group in (added, server, steady, back):
                        group.finish()
    assert "3 workers and 1 servers" in ended.output
    assert "resuming after step" in ended.output
    summary = launch.summary(runs.folder)
    assert summary.steps == last
    assert summary.steps_by_worker is not None
    assert set(summary.steps_by_worker) == {"worker-0", "worker-1", "worker-2"}
    assert sum(summary.steps_by_worker.values()) == 60, "those of this attempt"
    assert min(summary.steps_by_worker.values()) > 0


SILENCE = """
from tfparallel_trainer.engines.servers import presence

presence.SILENCE_SECONDS = 10.0
"""
"""What a model of the chief's does so that a test need not wait as long as a user; the processes
ask once a second."""


def test_a_hung_replica(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    text = (server_jobs.EXAMPLE / "model.py").read_text()
    (tmp_path / "model.py").write_text(text + SILENCE)
    environments = runs.server_environments(
        source=tmp_path,
        steps=launch.ENDLESS,
        checkpoint=server_jobs.CHECKPOINT,
        stepTimeoutSeconds=60,  # a chief that is stuck shows its stacks
    )
    with runs.group(
        [environments[name] for name in ("chief-0", "ps-0", "worker-0", "worker-1")]
    ) as group:
        _, server, _, worker = group.processes
        # Until every worker has made steps and evaluated, TensorFlow waits for all of them.
        group.wait_for_output(0, "  epoch 7  ")
        worker.send_signal(signal.SIGSTOP)
        group.wait_for_output(0, "worker-1 has not asked for 10 s")
        saved = launch.newest(runs.folder)
        waiting.until(
            lambda: launch.newest(runs.folder) > saved,
            "training continues without it",
            limit=180,
            in_vain=lambda: group.end(0),
        )
        worker.send_signal(signal.SIGCONT)
        group.wait_for_output(0, "worker-1 asks again")
        group.wait_for_output(0, "worker-1 makes steps again")

        server.send_signal(signal.SIGSTOP)
        assert group.processes[0].wait(120) == exits.Exit.PEER_LOST, group.result(0)
        assert "ps-0" in group.result(0).errors
        assert "has not asked for 10 s" in group.result(0).errors
        with runs.group([environments["chief-0"]]) as second:
            second.wait_for_output(0, "waiting for ps-0")
            server.send_signal(signal.SIGCONT)
            second.wait_for_output(0, "resuming after step")


SHARE = 0.1
"""Of the CPU time of a steady worker that a slow one gets."""


@contextlib.contextmanager
def throttled(
    slow: trainer_processes.Process, steady: trainer_processes.Process
) -> Iterator[Callable[[], None]]:
    """Give a function that, called often, stops the slow process where it has had its share."""
    start, steady_start = trainer_processes.cpu_seconds(slow), trainer_processes.cpu_seconds(steady)
    ran_at = 0.0

    def throttle() -> None:
        nonlocal ran_at
        share = SHARE * (trainer_processes.cpu_seconds(steady) - steady_start)
        now = time.monotonic()
        # An epoch ends with its batch too: it runs for a moment where all wait for it.
        if trainer_processes.cpu_seconds(slow) - start > share and now - ran_at < 0.9:
            slow.send_signal(signal.SIGSTOP)
        else:
            slow.send_signal(signal.SIGCONT)
            ran_at = now

    yield throttle
    slow.send_signal(signal.SIGCONT)


def test_a_slow_worker_holds_up_nobody(runs: trainings.Runs) -> None:
    environments = runs.server_environments(
        source=server_jobs.EXAMPLE, epochs=3, globalBatchSize=16
    )
    summary = runs.folder / "output" / outputs.SUMMARY
    with runs.group(list(environments.values())) as group:
        names = dict(zip(environments, group.processes, strict=True))
        group.wait_for_output(0, "] step ")
        # The chief says only for some seconds after its summary that training is done.
        with throttled(names["worker-1"], names["worker-0"]) as throttle:
            waiting.until(
                lambda: throttle() or summary.exists(),
                "the summary",
                limit=180,
                in_vain=lambda: group.end(0),
                poll=0.02,
            )
        group.finish()
    steps_by_worker = launch.summary(runs.folder).steps_by_worker
    assert steps_by_worker is not None
    print(f"one of two workers has a tenth of the other's CPU time: {steps_by_worker}")
    assert sum(steps_by_worker.values()) == 3 * 90
    assert 0 < 2 * steps_by_worker["worker-1"] < steps_by_worker["worker-0"]


def test_who_is_missing_is_named(runs: trainings.Runs) -> None:
    chief, server = (
        runs.server_environments(
            folder=name, source=server_jobs.EXAMPLE, epochs=1, startTimeoutSeconds=3
        )[name]
        for name in ("chief-0", "ps-0")
    )
    with runs.group([chief, server]) as group:  # of two jobs: each lacks all others
        ended = group.wait()
    for process, missing in zip(ended, ("worker-0", "chief-0"), strict=True):
        assert process.code == exits.Exit.START_TIMEOUT, process
        assert f"waited 3 s (startTimeoutSeconds) for {missing}" in process.errors


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
    environments = runs.server_environments(
        source=tmp_path, epochs=1, globalBatchSize=16, startTimeoutSeconds=5
    )
    # The limit of the others is for a chief that has gone, not for one that has yet to start.
    patient = server_jobs.changed(environments.pop("chief-0"), startTimeoutSeconds=600)
    with runs.group([patient]) as chief:
        chief.wait_for_output(0, "waiting for ")
        with runs.group(list(environments.values())) as others:
            (failed,) = chief.wait()
            ended = others.wait()
    assert failed.code == exits.Exit.USER_ERROR, failed
    last = failed.errors.rstrip().splitlines()[-1]
    assert re.search(r"model\.py(:\d+)?: training raised InvalidArgumentError: ", last)
    assert "label value of 9 which is outside the valid range" in last
    assert "See whether the data fits the model (labels within the classes" in last
    # The others have no part in it.
    assert {process.code for process in ended} == {exits.Exit.PEER_LOST}, ended
