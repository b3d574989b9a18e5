"""Training that no longer moves is shown and ended."""

import pathlib
import subprocess
import sys
import threading
import types
from typing import Any

import pytest

from testing import clock
from testing.trainer import launch
from testing.trainer import runs as trainings
from tfparallel_trainer.contract import exits, hangs, job_file
from tfparallel_trainer.errors import TrainerError
from tfparallel_trainer.lifecycle import stall

pytestmark = pytest.mark.usefixtures("processes")


LIMITS = stall.Limits(work=0.4, wait=50.0)


class Process:
    """Notes why it is to be given up."""

    def __init__(self) -> None:
        self.errors: list[TrainerError] = []
        self.ended = threading.Event()

    def give_up(self, error: TrainerError) -> None:
        self.errors.append(error)
        self.ended.set()


@pytest.fixture
def virtual_clock(monkeypatch: pytest.MonkeyPatch) -> clock.Clock:
    virtual_clock = clock.Clock(1000.0)
    monkeypatch.setattr(stall, "time", virtual_clock)
    return virtual_clock


def test_what_moves_is_left_alone_and_what_stands_is_shown(
    tmp_path: pathlib.Path, virtual_clock: clock.Clock
) -> None:
    process = Process()
    with (tmp_path / "stacks").open("w+") as stream:
        with stall.watching(LIMITS, process.give_up, stream) as watch:
            for step in range(8):
                virtual_clock.advance(0.3, reads=1)
                watch.moved(f"step {step}")
            assert not process.errors
            stuck_here(virtual_clock, process.ended)
        stream.seek(0)
        assert "in stuck_here" in stream.read()
    (error,) = process.errors
    assert error.exit is exits.Exit.STALLED
    hang = hangs.find(str(error))
    assert hang is not None
    assert hang.after == "step 7"
    assert "< stuck_here (test_stall.py:" in hang.stack


def stuck_here(virtual_clock: clock.Clock, ended: threading.Event) -> None:
    virtual_clock.advance(1.0, reads=1)
    assert ended.wait(60)


def test_a_wait_for_others_has_a_separate_limit(
    tmp_path: pathlib.Path, virtual_clock: clock.Clock
) -> None:
    process = Process()
    with (
        (tmp_path / "stacks").open("w") as stream,
        stall.watching(LIMITS, process.give_up, stream) as watch,
    ):
        with watch.waiting():
            virtual_clock.advance(49.0, reads=1)
            watch.moved("a look")
            virtual_clock.advance(49.0, reads=1)
        virtual_clock.advance(0.3, reads=1)
        assert not process.errors
        virtual_clock.advance(0.2, reads=1)
        assert process.ended.wait(60)
    assert "since the wait for the other replicas ended" in str(process.errors[0])


def test_a_wait_for_others_is_watched_too(
    tmp_path: pathlib.Path, virtual_clock: clock.Clock
) -> None:
    process = Process()
    with (
        (tmp_path / "stacks").open("w") as stream,
        stall.watching(LIMITS, process.give_up, stream) as watch,
        watch.waiting(),
    ):
        virtual_clock.advance(51.0, reads=1)
        assert process.ended.wait(60)
    assert "since the wait for the other replicas began" in str(process.errors[0])


def test_others_get_more_time_than_all_their_limits() -> None:
    spec = job_file.TrainerSpec.model_validate(
        {"epochs": 1, "stepTimeoutSeconds": 30, "startTimeoutSeconds": 100}
    )
    assert stall.limits(spec) == stall.Limits(work=30, wait=1000)


def test_limits_of_first_step_steps_and_evaluation_are_separate(
    tmp_path: pathlib.Path, virtual_clock: clock.Clock
) -> None:
    spec = {
        "epochs": 1,
        "stepTimeoutSeconds": 30,
        "firstStepTimeoutSeconds": 90,
        "evaluationTimeoutSeconds": 60,
        "startTimeoutSeconds": 100,
    }
    limits = stall.limits(job_file.TrainerSpec.model_validate(spec))
    assert limits == stall.Limits(work=30, wait=1600, first_step=90, evaluation=60)
    with (tmp_path / "stacks").open("w") as stream:
        watch = stall.Watch(limits, stream)
        try:
            with watch.first_step():
                virtual_clock.advance(89)
                assert watch.stalled() is None
                with watch.waiting():
                    virtual_clock.advance(1000)
                    assert watch.stalled() is None
                virtual_clock.advance(90)
                assert "trainer.firstStepTimeoutSeconds" in str(watch.stalled())
            assert watch.stalled() is None
            watch.moved("step 1")
            virtual_clock.advance(30)
            assert "trainer.stepTimeoutSeconds) since step 1" in str(watch.stalled())
            with watch.evaluation():
                virtual_clock.advance(59)
                assert watch.stalled() is None
                watch.moved("batch 1")
                virtual_clock.advance(60)
                assert "trainer.evaluationTimeoutSeconds) since batch 1" in str(watch.stalled())
            virtual_clock.advance(30)
            assert "trainer.stepTimeoutSeconds" in str(watch.stalled())
        finally:
            watch.end()


PHASES = """
import time, types
import keras, numpy, tensorflow as tf
from tfparallel_trainer.lifecycle import stall

now = time.monotonic()
stall.time = types.SimpleNamespace(monotonic=lambda: now)

class Hang(keras.callbacks.Callback):
    def on_train_batch_begin(self, batch, logs=None):
        self.at("training")
    def on_test_batch_begin(self, batch, logs=None):
        self.at("evaluation")
    def at(self, moment):
        global now
        if moment == MOMENT:
            now += 100
            time.sleep(600)

def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
def compile_model(model):
    model.compile("sgd", "mse")
def training_data():
    return numpy.ones((8, 2)), numpy.ones((8, 1))
evaluation_data = training_data
def callbacks():
    return [Hang()]
"""


@pytest.mark.parametrize(
    ("limit", "moment"),
    [("firstStepTimeoutSeconds", "training"), ("evaluationTimeoutSeconds", "evaluation")],
)
def test_a_job_that_hangs_ends_within_the_limit_of_its_phase(
    limit: str, moment: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(f"MOMENT = {moment!r}\n{PHASES}")
    lengths = {"epochs": 1, "globalBatchSize": 4}
    trainer: dict[str, object] = {**lengths, "stepTimeoutSeconds": 3000, limit: 20}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=1)
    with runs.group(environments) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.STALLED, ended
    assert f"(trainer.{limit}) since " in ended.errors


FIT = """
import tfparallel_trainer
model = build_model()
model.compile("sgd", "mse")
x, y = training_data()
tfparallel_trainer.fit(
    model, x, y, batch_size=4, validation_data=(x, y), callbacks=callbacks(), verbose=0,
    step_timeout_seconds=3000,
"""


@pytest.mark.parametrize(
    ("limit", "moment"),
    [("first_step_timeout_seconds", "training"), ("evaluation_timeout_seconds", "evaluation")],
)
def test_a_script_that_hangs_ends_within_the_limit_of_its_phase(
    limit: str, moment: str, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    script = tmp_path / "script.py"
    script.write_text(f"MOMENT = {moment!r}\n{PHASES}{FIT}    {limit}=20,\n)\n")
    environments = launch.environments(tmp_path, tmp_path, {"epochs": 1}, processes=1)
    with runs.group(environments, [str(script)]) as group:
        (ended,) = group.wait()
    assert ended.code == exits.Exit.STALLED, ended
    field = {"training": "firstStepTimeoutSeconds", "evaluation": "evaluationTimeoutSeconds"}
    assert f"(trainer.{field[moment]}) since " in ended.errors


def test_a_watch_that_is_over_ends_nothing(
    tmp_path: pathlib.Path, virtual_clock: clock.Clock
) -> None:
    reported: list[TrainerError] = []
    before = set(threading.enumerate())
    limits = stall.Limits(work=600, wait=600)
    with (tmp_path / "stacks").open("w") as stream, stall.watching(limits, reported.append, stream):
        (watching,) = set(threading.enumerate()) - before
    virtual_clock.advance(600)
    watching.join(60)
    assert not watching.is_alive()
    assert not reported


LOCKED = """
import ctypes, sys
from tfparallel_trainer.lifecycle import stall
stall.LOCKED_SECONDS = 0.5
with stall.watching(stall.Limits(1.0, 1.0), sys.exit, sys.stderr):
    ctypes.PyDLL(None).sleep(3600)  # keeps Python's lock
"""


def test_a_process_that_keeps_pythons_lock_is_shown_and_ended() -> None:
    done = subprocess.run([sys.executable, "-c", LOCKED], capture_output=True, text=True)
    assert done.returncode == 1
    assert 'File "<string>", line 6 in <module>' in done.stderr


def test_libraries_are_left_out_of_a_stack_except_for_the_innermost_call() -> None:
    frame: Any = None
    for name, file in (
        ("train", "/home/a/model.py"),
        ("call_flat", "/lib/tensorflow/function.py"),
        ("execute", "/lib/tensorflow/execute.py"),
    ):
        code = types.SimpleNamespace(co_name=name, co_filename=file)
        frame = types.SimpleNamespace(f_code=code, f_lineno=2, f_back=frame)
    assert stall._describe_stack(frame) == "execute (execute.py:2) < train (model.py:2)"
    assert stall._describe_stack(None) == "no call (unknown)"


MODEL = """
import time, keras, numpy, tensorflow as tf
def build_model():
    return keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
def compile_model(model):
    model.compile("sgd", "mse")
def training_data():
    def generate():
        for _ in range(40):
            yield numpy.ones(2), numpy.ones(1)
        never_comes()
    kind = tf.TensorSpec((2,), tf.float64), tf.TensorSpec((1,), tf.float64)
    return tf.data.Dataset.from_generator(generate, output_signature=kind)
def never_comes():
    time.sleep(600)
"""


def test_a_replica_whose_data_never_comes_ends_all(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    # The chief is never stuck itself: it waits for the worker in a sum over replicas.
    worker_only = 'if \'"task": {"type": "worker"\' in os.environ["TF_CONFIG"]: never_comes()'
    text = "import os\n" + MODEL.replace("        never_comes()", f"        {worker_only}")
    (tmp_path / "model.py").write_text(text)
    trainer: dict[str, object] = {"epochs": 1, "globalBatchSize": 4, "stepTimeoutSeconds": 6}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2)
    with runs.group(environments) as group:
        chief, worker = group.wait()
    assert {chief.code, worker.code} <= {exits.Exit.STALLED, exits.Exit.PEER_LOST}
    assert exits.Exit.STALLED in (chief.code, worker.code)
    assert any(
        "(trainer.stepTimeoutSeconds) since " in process.errors for process in (chief, worker)
    )


IMPATIENT = """
def build_strategy():
    options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=5)
    return tf.distribute.MultiWorkerMirroredStrategy(communication_options=options)
"""


def test_a_collective_that_times_out_names_the_place_of_the_hang(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    worker_only = 'if \'"task": {"type": "worker"\' in os.environ["TF_CONFIG"]: never_comes()'
    text = "import os\n" + MODEL.replace("        never_comes()", f"        {worker_only}")
    (tmp_path / "model.py").write_text(text + IMPATIENT)
    trainer: dict[str, object] = {"epochs": 1, "globalBatchSize": 4, "stepTimeoutSeconds": 600}
    environments = launch.environments(tmp_path, tmp_path, trainer, processes=2, strategy="Custom")
    with runs.group(environments) as group:
        ended = group.wait()
    assert exits.Exit.STALLED in [process.code for process in ended]
    for process in ended:
        if process.code == exits.Exit.STALLED:
            message = process.errors.partition(" error: ")[2]
            assert "(CommunicationOptions.timeout_seconds) since step " in message
            hang = hangs.find(message)
            assert hang is not None, message
            assert hang.after.startswith("step "), message


ENDLESS = """
import time
import keras, numpy, tensorflow as tf
from tfparallel_trainer.lifecycle import stall

class Clock:
    "Stands still until the step before the last one has ended."
    starts = None

    def monotonic(self):
        return 0.0 if self.starts is None else time.monotonic() - self.starts

stall.time = clock = Clock()
moved = stall.Watch.moved

def start_clock(watch, what):
    if what == "step 7":
        clock.starts = time.monotonic()
    moved(watch, what)

stall.Watch.moved = start_clock

class Endless(keras.layers.Layer):
    def call(self, x):
        turns = tf.where(tf.reduce_max(x) > 1, tf.int64.max, 1)
        count = tf.while_loop(lambda i: i < turns, lambda i: [i + 1], [tf.zeros((), tf.int64)])
        return x + tf.cast(tf.minimum(count[0], 0), x.dtype)

def build_model():
    return keras.Sequential([keras.Input((2,)), Endless(), keras.layers.Dense(1)])
def compile_model(model):
    model.compile("sgd", "mse")
def training_data():
    x = numpy.ones((40, 2))
    x[30] = 2
    return tf.data.Dataset.from_tensor_slices((x, numpy.ones((40, 1))))
"""


def test_a_step_of_a_worker_that_never_ends_is_reported_by_the_chief(
    tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    (tmp_path / "model.py").write_text(ENDLESS)
    trainer: dict[str, object] = {"epochs": 1, "globalBatchSize": 4, "stepTimeoutSeconds": 6}
    started = launch.with_servers(tmp_path, tmp_path, trainer, workers=1)
    with runs.group(list(started.values())) as group:
        assert group.processes[0].wait(150) == exits.Exit.STALLED, group.result(0)
        ended = group.result(0)
    assert "(trainer.stepTimeoutSeconds) since step 7:" in ended.errors
    assert "Thread 0x" in ended.errors, "the stacks"
