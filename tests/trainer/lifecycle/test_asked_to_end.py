"""SIGTERM at any moment: a documented exit code within ten seconds, and no step is lost."""

import contextlib
import pathlib
import signal
import threading
from collections.abc import Iterator

import pytest

from testing import clock, disks, waiting
from testing.trainer import launch, reference, saves, weights
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits
from tfparallel_trainer.lifecycle import termination


def ask(group: launch.Group, numbers: list[int], until: list[int]) -> list[launch.Ended]:
    """Ask processes to end; gives how those of `until` ended."""
    for number in numbers:
        group.processes[number].send_signal(signal.SIGTERM)
    for number in until:
        group.processes[number].wait(150)
    return [group.result(number) for number in until]


MODEL = """
import time, keras, numpy, tensorflow as tf

class Slow(keras.layers.Layer):
    def call(self, x, training=False):
        if training and SLOW_TRACE and not tf.executing_eagerly():
            print("tracing", flush=True)
            time.sleep(60)
        return x

def build_model():
    return keras.Sequential([keras.Input((1,)), Slow(), keras.layers.Dense(1)])

def compile_model(model):
    model.compile("sgd", "mse")

def training_data():
    return numpy.ones((8, 1)), numpy.ones((8, 1))

def evaluation_data():
    def generate():
        for number in range(1000):
            if number > 2:
                print("evaluating", flush=True)
                time.sleep(0.5)
            yield numpy.ones(1), numpy.ones(1)
    kind = tf.TensorSpec((1,), tf.float64)
    return tf.data.Dataset.from_generator(generate, output_signature=(kind, kind))
"""


@pytest.mark.parametrize("moment", ["tracing", "evaluating"])
def test_where_no_step_ends(tmp_path: pathlib.Path, moment: str, runs: trainings.Runs) -> None:
    text = MODEL.replace("SLOW_TRACE", str(moment == "tracing"))
    (tmp_path / "model.py").write_text(text)
    trainer: dict[str, object] = {
        "epochs": 3,
        "globalBatchSize": 4,
        "checkpoint": {"claim": "c"},
    }
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2)
    with runs.group(environments) as group:
        group.wait_for_output(1, moment)
        chief, worker = ask(group, [1], until=[0, 1])
    assert worker.code == exits.Exit.PREEMPTED, worker
    assert chief.code in (exits.Exit.PREEMPTED, exits.Exit.PEER_LOST), chief
    if moment == "evaluating":
        weights.checkpoint(tmp_path / "output", 2)  # the evaluation is of the step that was saved


def is_saving(checkpoints: pathlib.Path) -> bool:
    """Whether variables are being written."""
    return any((draft / saves.data()).exists() for draft in saves.drafts(checkpoints))


def test_during_a_save(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    (tmp_path / "model.py").write_text(saves.SLOW_MODEL)
    trainer: dict[str, object] = {"steps": launch.ENDLESS, "globalBatchSize": 4}
    trainer["checkpoint"] = {"claim": "c", "everySteps": 1, "keep": 2}
    environments = launch.environments(tmp_path, tmp_path, trainer, strategy="Mirrored")
    # In memory, because how long a disk takes is not the trainer's to say.
    with disks.mounted(tmp_path / "output", "size=1g") as output:
        checkpoints = output / "checkpoints"
        with runs.group(environments) as group:
            waiting.until(
                lambda: (checkpoints / "step-0000000002").exists() and is_saving(checkpoints),
                "a save after that of step 2",
                poll=0.0005,
            )
            (ended,) = ask(group, [0], until=[0])
        assert ended.code == exits.Exit.PREEMPTED, ended
        stopped = int(ended.errors.rsplit("after step ", 1)[1].split(",")[0])
        assert len(weights.checkpoint(tmp_path / "output", stopped)) == saves.VARIABLES


def test_asynchronous_replicas(tmp_path: pathlib.Path, runs: trainings.Runs) -> None:
    checkpoint = {"claim": "c", "everySteps": 1000}
    trainer: dict[str, object] = {
        "module": "slow_stream.py",
        "steps": launch.ENDLESS,
        "globalBatchSize": 10,
        "checkpoint": checkpoint,
    }
    started = launch.with_servers(tmp_path, reference.MODELS, trainer)
    with runs.group(list(started.values())) as group:
        group.wait_for_output(0, "] step ")
        (worker,) = ask(group, [2], until=[2])
        assert worker.code == exits.Exit.PREEMPTED, worker
        group.wait_for_output(0, "worker-1 is gone")
        ended = ask(group, [0, 1, 3], until=[0, 1, 3])
    assert [process.code for process in ended] == [exits.Exit.PREEMPTED] * 3, ended
    assert "which is saved" in ended[0].errors
    stopped = int(ended[0].errors.rsplit("after step ", 1)[1].split(",")[0])
    assert stopped % 1000
    assert weights.checkpoint(tmp_path / "output", stopped)


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> clock.Clock:
    virtual_clock = clock.Clock()
    monkeypatch.setattr(termination, "time", virtual_clock)
    return virtual_clock


@contextlib.contextmanager
def asked(stop: termination.Termination) -> Iterator[None]:
    """Send this process SIGTERM; the handlers are then as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        stop.install()
        signal.raise_signal(signal.SIGTERM)
        waiting.until(lambda: stop.asked, "the signal")
        yield
    finally:
        stop.end()
        signal.set_wakeup_fd(-1)
        for number, handler in before.items():
            signal.signal(number, handler)


def assert_ends_at(virtual_clock: clock.Clock, moment: float, given_up: threading.Event) -> None:
    # The first of two reads has then changed nothing.
    virtual_clock.advance(moment - 0.01 - virtual_clock.now, reads=2)
    assert not given_up.is_set()
    virtual_clock.advance(0.02)
    waiting.until(given_up.is_set, "giving up")


def test_time_that_is_added_later_counts(virtual_clock: clock.Clock) -> None:
    given_up = threading.Event()
    stop = termination.Termination(given_up.set, 30)
    stop.allow(0.3)
    with asked(stop):
        stop.allow(1.0)
        assert_ends_at(virtual_clock, 1.0, given_up)


@pytest.mark.parametrize(("grace", "seconds"), [(600, 595.0), (30, 25.0), (12, 10.0)])
def test_a_save_may_take_most_of_the_grace(
    virtual_clock: clock.Clock, grace: int, seconds: float
) -> None:
    given_up = threading.Event()
    stop = termination.Termination(given_up.set, grace)
    stop.allow(termination.STEP_SECONDS)
    with asked(stop), stop.saving():
        assert_ends_at(virtual_clock, seconds, given_up)


def test_a_step_may_not_take_longer_than_the_grace(virtual_clock: clock.Clock) -> None:
    given_up = threading.Event()
    stop = termination.Termination(given_up.set, 3)
    stop.allow(termination.STEP_SECONDS)
    with asked(stop):
        assert_ends_at(virtual_clock, 2.5, given_up)


def test_a_save_that_ends_takes_no_time_from_the_last_one(virtual_clock: clock.Clock) -> None:
    given_up = threading.Event()
    stop = termination.Termination(given_up.set, 600)
    stop.allow(termination.STEP_SECONDS)
    with asked(stop):
        with stop.saving():
            stop.allow_save()
        assert_ends_at(virtual_clock, 595.0, given_up)
