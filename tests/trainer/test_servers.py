"""Asynchronous training with parameter servers, as real processes: what is exact stays exact."""

import json
import os
import pathlib
import signal
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.trainer import launch, reference
from tests.trainer.test_equality import largest_difference
from tfparallel_trainer import errors, preflight, settings, user
from tfparallel_trainer.checkpoint import store
from tfparallel_trainer.contract import environment, exits, outputs
from tfparallel_trainer.mesh import cluster, shape, tasks
from tfparallel_trainer.servers import asynchronous, control, ledger, presence, steps
from tfparallel_trainer.step import replica, train

EXAMPLE = launch.REPOSITORY / "examples" / "digits-servers"
CHECKPOINT: dict[str, object] = {"claim": "c", "everySteps": 15, "keep": 2}


def wait(group: launch.Group) -> list[launch.Ended]:
    """Wait for a group whose chief ends well; without that the others would wait for it."""
    assert group.processes[0].wait(120) == 0, group.result(0)
    return group.wait(20)


@pytest.mark.trainer
def test_it_trains_and_counts_exactly(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {"epochs": 5, "globalBatchSize": 32, "maxStaleness": 1}
    started = launch.with_servers(tmp_path, EXAMPLE, trainer, workers=2, servers=2)
    with launch.Group(tmp_path / "logs", list(started.values())) as group:
        ended = wait(group)
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
    x, y = reference.load("model", EXAMPLE).evaluation_data()
    _, accuracy = model.evaluate(x, y, batch_size=32, verbose=0)
    assert accuracy == pytest.approx(metrics["val_accuracy"], abs=1e-6)


@pytest.mark.trainer
def test_one_worker_equals_one_process(tmp_path: pathlib.Path) -> None:
    with reference.floatx():
        module = reference.load("mlp")
        expected, losses = reference.train(module, 12, 20, 3)
    trainer: dict[str, object] = {
        "module": "mlp.py",
        "steps": 12,
        "globalBatchSize": 20,
        "seed": 3,
        "checkpoint": CHECKPOINT,
    }
    started = launch.with_servers(tmp_path, reference.MODELS, trainer, workers=1, servers=2)
    with launch.Group(tmp_path / "logs", list(started.values())) as group:
        ended = wait(group)
    assert [one.code for one in ended] == [0] * 4, ended
    difference = largest_difference(tmp_path, expected)
    print(f"one worker, two servers: largest difference of a weight {difference:.1e}")
    assert difference <= 1e-10
    told = launch.summary(tmp_path).metrics
    means = np.average(losses[9:], weights=(20, 20, 12))
    assert float(told["loss"]) == pytest.approx(means, abs=1e-10)
    assert told["staleness_max"] == 0


@pytest.mark.trainer
def test_whoever_is_lost(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {
        "module": "slow_stream.py",
        "steps": 200,
        "globalBatchSize": 20,
        "startTimeoutSeconds": 60,
        "checkpoint": CHECKPOINT,
    }
    started = launch.with_servers(tmp_path, reference.MODELS, trainer)

    def start(*names: str) -> launch.Group:
        return launch.Group(tmp_path / "logs", [started[name] for name in names])

    with start("chief-0", "ps-0") as first, start("worker-0") as steady:
        with start("worker-1") as lost:
            first.wait_for_output(0, "] step ")
            lost.processes[0].send_signal(signal.SIGKILL)
            first.wait_for_output(0, "worker-1 is gone", 20)
        with start("worker-1") as back:
            first.wait_for_output(0, "worker-1 is back", 40)
            first.wait_for_output(0, "worker-1 makes steps again", 40)

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
                with start("chief-0") as third:
                    ended = [wait(one)[0] for one in (third, server, steady, back)]
    assert [one.code for one in ended] == [0] * 4, ended
    assert "resuming after step" in ended[0].output
    told = launch.summary(tmp_path)
    assert told.steps == 200
    assert told.steps_by_worker is not None
    assert set(told.steps_by_worker) == {"worker-0", "worker-1"}
    assert 0 < sum(told.steps_by_worker.values()) < 200, "those of this attempt"


@pytest.mark.trainer
def test_whoever_is_frozen(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {"steps": 100_000, "checkpoint": CHECKPOINT}
    started = launch.with_servers(tmp_path, EXAMPLE, trainer)
    environments = [started[name] for name in ("chief-0", "ps-0", "worker-0", "worker-1")]
    with launch.Group(tmp_path / "logs", environments) as group:
        chief, server, _, worker = group.processes
        # Before each kind of operation has been used, TensorFlow waits for all workers.
        group.wait_for_output(0, "  epoch 2  ")
        worker.send_signal(signal.SIGSTOP)
        group.wait_for_output(0, "worker-1 has not asked for 30 s", 60)
        saved = newest_checkpoint(tmp_path)
        until(lambda: newest_checkpoint(tmp_path) > saved, "training goes on without it")
        worker.send_signal(signal.SIGCONT)
        group.wait_for_output(0, "worker-1 asks again", 10)
        group.wait_for_output(0, "worker-1 makes steps again", 10)

        server.send_signal(signal.SIGSTOP)
        frozen = time.monotonic()
        assert chief.wait(60) == exits.Exit.PEER_LOST, group.result(0)
        print(f"a frozen server ended the chief after {time.monotonic() - frozen:.1f} s")
        assert time.monotonic() - frozen < presence.SILENCE_SECONDS + 10
        assert "ps-0" in group.result(0).errors
        with launch.Group(tmp_path / "second", [started["chief-0"]]) as second:
            second.wait_for_output(0, "waiting for ps-0")
            server.send_signal(signal.SIGCONT)
            second.wait_for_output(0, "resuming after step")


@pytest.mark.trainer
def test_a_slow_worker_holds_up_nobody(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {"epochs": 10, "globalBatchSize": 32}
    started = launch.with_servers(tmp_path, EXAMPLE, trainer)
    slow, *others = (started[name] for name in ("worker-1", "chief-0", "worker-0", "ps-0"))
    with (
        launch.Group(tmp_path / "slow", [slow]) as one,
        launch.Group(tmp_path / "logs", others) as group,
    ):
        group.wait_for_output(0, "] step ")
        (worker,) = one.processes
        while group.processes[0].poll() is None:
            worker.send_signal(signal.SIGSTOP)
            time.sleep(0.4)
            worker.send_signal(signal.SIGCONT)
            time.sleep(0.1)
        ended = group.wait(20)
        assert one.wait(20)[0].code == 0
    assert [end.code for end in ended] == [0] * 3, ended
    steps_by_worker = launch.summary(tmp_path).steps_by_worker
    assert steps_by_worker is not None
    print(f"one of two workers stands still for four fifths of the time: {steps_by_worker}")
    assert sum(steps_by_worker.values()) == 450
    assert 0 < 2 * steps_by_worker["worker-1"] < steps_by_worker["worker-0"]


@pytest.mark.trainer
def test_workers_are_added_by_a_restart_of_the_chief_alone(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {
        "module": "slow_stream.py",
        "steps": 150,
        "globalBatchSize": 20,
        "checkpoint": CHECKPOINT,
    }
    more = launch.with_servers(tmp_path, reference.MODELS, trainer, workers=3)
    fewer = {name: without(more[name], "worker", 2) for name in more}
    old = [fewer[name] for name in ("worker-0", "worker-1", "ps-0")]
    with launch.Group(tmp_path / "others", old) as others:
        with launch.Group(tmp_path / "first", [fewer["chief-0"]]) as first:
            first.wait_for_output(0, "2 workers and 1 servers")
            first.wait_for_output(0, "] step ")
            until(lambda: newest_checkpoint(tmp_path) > 0, "a checkpoint")
            first.processes[0].send_signal(signal.SIGTERM)
            assert first.wait(30)[0].code == exits.Exit.PREEMPTED
        with (
            launch.Group(tmp_path / "new", [more["worker-2"]]) as new,
            launch.Group(tmp_path / "second", [more["chief-0"]]) as second,
        ):
            ended = [*wait(second), *new.wait(20), *others.wait(20)]
    assert [one.code for one in ended] == [0] * 5, ended
    assert "3 workers and 1 servers" in ended[0].output
    assert "resuming after step" in ended[0].output
    told = launch.summary(tmp_path)
    assert told.steps == 150
    assert told.steps_by_worker is not None
    print(f"steps after a third worker was added: {told.steps_by_worker}")
    assert min(told.steps_by_worker.values()) > 0
    assert len(told.steps_by_worker) == 3


def without(given: dict[str, str], role: str, index: int) -> dict[str, str]:
    """An environment whose cluster lacks the tasks of a role from an index on."""
    config = json.loads(given[environment.TF_CONFIG])
    config["cluster"][role] = config["cluster"][role][:index]
    return {**given, environment.TF_CONFIG: json.dumps(config)}


def newest_checkpoint(folder: pathlib.Path) -> int:
    """The step of the newest checkpoint; 0 before the first."""
    found = folder / "output" / outputs.CHECKPOINTS
    if not found.is_dir():
        return 0
    return max((store.step_of(one) for one in store.checkpoints(found)), default=0)


def until(condition: Callable[[], bool], what: str, limit: float = 90) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + limit
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@pytest.mark.trainer
def test_who_is_missing_is_named(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {"epochs": 1, "startTimeoutSeconds": 3}
    codes = []
    for name, missing in (("chief-0", "worker-0"), ("ps-0", "chief-0")):
        started = launch.with_servers(tmp_path / name, EXAMPLE, trainer)
        with launch.Group(tmp_path / name, [started[name]]) as group:
            (ended,) = group.wait(60)
        assert f"waited 3 s (startTimeoutSeconds) for {missing}" in ended.errors
        codes.append(ended.code)
    assert codes == [exits.Exit.START_TIMEOUT] * 2


def given(folder: pathlib.Path, cluster: dict[str, object], role: str = "chief") -> None:
    (one,) = launch.environments(folder, EXAMPLE, {"epochs": 1}, strategy="ParameterServer")
    config = json.dumps({"cluster": cluster, "task": {"type": role, "index": 0}})
    preflight.check(settings.read({**os.environ, **one, "TF_CONFIG": config}))


def test_clusters_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    given(tmp_path, {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]})
    given(tmp_path, {"chief": ["a:1"], "worker": {"0": "b:1"}, "ps": ["c:1"]}, "worker")
    given(tmp_path, {"chief": ["a:1"], "ps": ["c:1"]}, "ps")
    with pytest.raises(errors.BadConfigurationError, match=r"no ps \(holds the weights\)"):
        given(tmp_path, {"chief": ["a:1"], "worker": ["b:1"]})
    with pytest.raises(errors.BadConfigurationError, match="no chief, which gives out the work"):
        given(tmp_path, {"worker": ["b:1"], "ps": ["c:1"]}, "worker")


def test_bound_and_servers_need_the_strategy(tmp_path: pathlib.Path) -> None:
    (one,) = launch.environments(tmp_path, EXAMPLE, {"epochs": 1, "maxStaleness": 2})
    with pytest.raises(errors.BadConfigurationError, match=r"trainer\.maxStaleness is given"):
        preflight.check(settings.read(one))
    (one,) = launch.environments(tmp_path, EXAMPLE, {"epochs": 1})
    cluster = {"chief": ["a:1"], "ps": ["c:1"]}
    one["TF_CONFIG"] = json.dumps({"cluster": cluster, "task": {"type": "chief", "index": 0}})
    with pytest.raises(errors.BadConfigurationError, match="role ps, which strategy"):
        preflight.check(settings.read(one))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"use_ema": True}, "use_ema=True"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
    ],
)
def test_optimizers_that_would_lose_updates_are_refused(
    arguments: dict[str, object], said: str
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, **arguments), "mse")
    with pytest.raises(errors.UserCodeError, match=said):
        steps.check(model)


def test_a_batch_changes_no_variable() -> None:
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            keras.layers.Dense(8, kernel_regularizer="l2", activity_regularizer="l1"),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss, metrics=["accuracy"])
    module = user.Module(
        pathlib.Path("model.py"), {"build_model": lambda: model, "training_data": lambda: None}
    )
    x = np.random.default_rng(0).normal(size=(10, 6)).astype("float32")
    part = (x, np.arange(10) % 3, None)
    own = replica.build(module, shape.Mesh(), 0, "", 0, part)
    before = [variable.numpy() for variable in model.variables]

    @tf.function(autograph=False)
    def run(step: tf.Tensor) -> Any:
        found = train.of_batch(own, part, step)
        values = [value for _, value in found.apart.statistics]
        return found.loss, found.gradients, found.apart.contributions, values

    first, again, other = (run(tf.constant(step, tf.int64)) for step in (4, 4, 5))
    after = [variable.numpy() for variable in model.variables]
    assert all(np.array_equal(one, two) for one, two in zip(before, after, strict=True))
    assert float(first[0]) == float(again[0]) != float(other[0]), "dropout follows from the step"
    assert len([gradient for gradient in first[1] if gradient is not None]) == 6
    assert sum(float(tf.reduce_sum(state)) == 10 for state in first[2]) == 1, "examples counted"
    assert len(first[3]) == 2, "moving mean and variance"
    own.reseed(tf.constant(4, tf.int64))
    expected = model.compute_loss(part[0], part[1], model(x, training=True))
    assert float(first[0]) == pytest.approx(float(expected), rel=1e-6)


class LostTwice:
    """A result on a worker that is lost before it is fetched; the step is made again."""

    def __init__(self, error: Exception | None = None) -> None:
        self.looks = 0
        self._error = error

    def fetch(self) -> int:
        self.looks += 1
        if self._error is not None:
            raise self._error
        if self.looks < 3:
            raise tf.errors.UnavailableError(None, None, "/job:worker: Connection refused")
        return 7


def test_results_that_are_lost_with_a_worker_are_waited_for() -> None:
    assert ledger.fetch(LostTwice()) == 7
    own = LostTwice(tf.errors.InvalidArgumentError(None, None, "a label of 9"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label of 9"):
        ledger.fetch(own)
    assert own.looks == 2


class Coordinator:
    """TensorFlow's: when a step has failed, the next call raises that error, once."""

    def __init__(self, results: list[Any], error: Exception) -> None:
        self._results = results
        self._error: Exception | None = error

    def schedule(self, function: Any, args: Any) -> Any:
        del function, args
        if self._results:
            return self._results.pop(0)
        assert self._error is not None, "it was told before"
        error, self._error = self._error, None
        raise error


@pytest.mark.parametrize("cancelled_first", [True, False])
def test_the_first_error_is_told_and_not_that_others_were_cancelled(cancelled_first: bool) -> None:
    users = tf.errors.InvalidArgumentError(None, None, "a label of 9")
    others = tf.errors.CancelledError(None, None, "another function was cancelled")
    results = [LostTwice(others), LostTwice(users), LostTwice(others)]
    if not cancelled_first:
        results.reverse()
    given: ledger.Ledger[int] = ledger.Ledger(Coordinator(results[:2], users), 2, list)
    for label in range(2):
        given.send(label, None, ())
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label of 9"):
        while given:
            given.take()


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


@pytest.mark.trainer
def test_an_error_in_a_step_of_one_of_many_is_the_users(tmp_path: pathlib.Path) -> None:
    (tmp_path / "model.py").write_text(MISLABELLED)
    trainer: dict[str, object] = {"epochs": 1, "globalBatchSize": 16, "startTimeoutSeconds": 5}
    started = launch.with_servers(tmp_path, tmp_path, trainer)
    with launch.Group(tmp_path / "logs", list(started.values())) as group:
        ended = dict(zip(started, group.wait(), strict=True))
    assert ended["chief-0"].code == exits.Exit.USER_ERROR, ended
    last = ended["chief-0"].errors.rstrip().splitlines()[-1]
    assert "model.py: training raised InvalidArgumentError: " in last
    assert "label value of 9 which is outside the valid range" in last
    assert "See whether the data fits the model (labels within the classes" in last
    # The others have no part in it.
    others = {one.code for name, one in ended.items() if name != "chief-0"}
    assert others == {exits.Exit.PEER_LOST}, ended


def test_what_a_step_gives_is_read_from_its_vector() -> None:
    found = steps.Result.of(np.array([12.0, 1.0, 3.0, 0.5, 0.2, 0.3, 7.0, 8.0]), terms=2)
    assert (found.worker, found.applied, found.staleness, found.loss) == (12, True, 3, 0.5)
    assert found.terms == [0.2, 0.3]
    assert found.contributions.tolist() == [7.0, 8.0]


def test_staleness_is_told() -> None:
    found = asynchronous.Staleness()
    for staleness, applied in ((0, True), (3, True), (5, False), (0, True)):
        found.add(staleness, applied)
    assert found.values(bounded=True) == {
        "staleness_mean": 1.0,
        "staleness_max": 3.0,
        "dropped": 1.0,
    }
    assert "dropped" not in found.values(bounded=False)


def test_the_chief_answers_until_all_have_heard() -> None:
    (port,) = launch.free_ports(1)
    chief = tasks.Task("chief", 0, f"127.0.0.1:{port}")
    assert control.ask(chief, "worker-0", "a") is None
    with control.Control(chief) as answers:
        assert control.ask(chief, "worker-0", "a") is control.Answer.RUN
        began = time.monotonic()
        answers.dismiss(["worker-0"], 0.2)
        assert time.monotonic() - began >= 0.2
        assert control.ask(chief, "worker-0", "a") is control.Answer.DONE
        answers.dismiss(["worker-0"], 60)
        assert time.monotonic() - began < 30
    assert control.ask(chief, "worker-0", "a") is None


def test_a_worker_that_was_replaced_before_anybody_saw_it_gone_is_back() -> None:
    ports = launch.free_ports(2)
    chief, worker = (
        tasks.Task(role, 0, f"127.0.0.1:{port}")
        for role, port in zip(("chief", "worker"), ports, strict=True)
    )
    said: list[str] = []
    with control.Control(chief) as answers:
        workers = presence.Workers([worker], answers, said.append)

        def look(life: str) -> None:
            control.ask(chief, worker.name, life)
            workers.look()

        with cluster.listen(worker):
            for life in ("a", "a", "b", "b"):
                look(life)
            assert said == ["worker-0 is back"]
            workers.made(0)
            assert said.pop() == "worker-0 makes steps again"
        workers.look()
        with cluster.listen(worker):
            look("c")
            look("c")
    assert said == [
        "worker-0 is back",
        f"worker-0 is gone ({worker.address}); it may come back there",
        "worker-0 is back",
    ]
