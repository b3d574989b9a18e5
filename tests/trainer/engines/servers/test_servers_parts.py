"""The parts of training with parameter servers, each in this process."""

import concurrent.futures
import json
import os
import pathlib
import threading
import time
import types
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import clock, waiting
from testing.trainer import launch, ranks, server_jobs
from tfparallel.backends.local import ports
from tfparallel_trainer import errors, process_settings, tasks, user
from tfparallel_trainer.comms import cluster, shape
from tfparallel_trainer.data import batch_division, nest
from tfparallel_trainer.engines import engine
from tfparallel_trainer.engines.servers import asynchronous, control, ledger, presence, worker_steps
from tfparallel_trainer.loop import preflight
from tfparallel_trainer.objective import replica, train_step


def check(folder: pathlib.Path, addresses: dict[str, object], role: str = "chief") -> None:
    (variables,) = launch.environments(
        folder, server_jobs.EXAMPLE, {"epochs": 1}, strategy="ParameterServer"
    )
    config = json.dumps({"cluster": addresses, "task": {"type": role, "index": 0}})
    preflight.check(process_settings.read({**os.environ, **variables, "TF_CONFIG": config}))


def test_clusters_that_do_not_fit_are_refused(tmp_path: pathlib.Path) -> None:
    check(tmp_path, {"chief": ["a:1"], "worker": ["b:1"], "ps": ["c:1"]})
    check(tmp_path, {"chief": ["a:1"], "worker": {"0": "b:1"}, "ps": ["c:1"]}, "worker")
    check(tmp_path, {"chief": ["a:1"], "ps": ["c:1"]}, "ps")
    with pytest.raises(errors.BadConfigurationError, match=r"no ps \(holds the weights\)"):
        check(tmp_path, {"chief": ["a:1"], "worker": ["b:1"]})
    with pytest.raises(errors.BadConfigurationError, match="no chief, which gives out the work"):
        check(tmp_path, {"worker": ["b:1"], "ps": ["c:1"]}, "worker")


def test_bound_and_servers_need_the_strategy(tmp_path: pathlib.Path) -> None:
    trainer: dict[str, object] = {"epochs": 1, "maxStaleness": 2}
    (variables,) = launch.environments(tmp_path, server_jobs.EXAMPLE, trainer)
    with pytest.raises(errors.BadConfigurationError, match=r"trainer\.maxStaleness is given"):
        preflight.check(process_settings.read(variables))
    (variables,) = launch.environments(tmp_path, server_jobs.EXAMPLE, {"epochs": 1})
    addresses = {"chief": ["a:1"], "ps": ["c:1"]}
    variables["TF_CONFIG"] = json.dumps(
        {"cluster": addresses, "task": {"type": "chief", "index": 0}}
    )
    with pytest.raises(errors.BadConfigurationError, match="role ps, which strategy"):
        preflight.check(process_settings.read(variables))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"use_ema": True}, "use_ema=True"),
        ({"gradient_accumulation_steps": 2}, "gradient_accumulation_steps=2"),
    ],
)
def test_optimizers_that_would_lose_updates_are_refused(
    arguments: dict[str, object], message: str
) -> None:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.1, **arguments), "mse")
    module = ranks.module(lambda: model, lambda _: None)
    (checked,) = ranks.build_apart(module, (np.ones((1, 2)), np.ones((1, 1)), None), 1)
    with pytest.raises(errors.UserCodeError, match=message):
        worker_steps.check(checked, 1)


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
    rank_replica = replica.build(module, shape.MeshShape(), 0, "", 0, part)
    before = [variable.numpy() for variable in model.variables]

    @tf.function(autograph=False)
    def run(step: tf.Tensor) -> Any:
        outcome = train_step.compute_local_gradients(rank_replica, part, step)
        values = [value for _, value in outcome.isolated.assigned]
        return outcome.loss, outcome.gradients, outcome.isolated.contributions, values

    first, again, other = (run(tf.constant(step, tf.int64)) for step in (4, 4, 5))
    after = [variable.numpy() for variable in model.variables]
    assert all(np.array_equal(first, two) for first, two in zip(before, after, strict=True))
    assert float(first[0]) == float(again[0]) != float(other[0]), "dropout follows from the step"
    assert len([gradient for gradient in first[1] if gradient is not None]) == 6
    assert sum(float(tf.reduce_sum(state)) == 10 for state in first[2]) == 1, "examples counted"
    assert len(first[3]) == 2, "moving mean and variance"

    @tf.function(autograph=False)
    def expected() -> Any:
        with train_step.seeded_from_step(rank_replica, tf.constant(4, tf.int64)):
            return model.compute_loss(part[0], part[1], model(x, training=True))

    assert float(first[0]) == pytest.approx(float(expected()), rel=1e-6)


class Others(keras.layers.Layer):
    """Two steps of others are applied while a step is computed."""

    def __init__(self, variable: tf.Variable) -> None:
        super().__init__()
        self.steps_made = variable

    def call(self, x: Any, training: bool = False) -> Any:
        if training:
            self.steps_made.assign_add(2)
        return x


@pytest.mark.parametrize(("bound", "applied"), [(None, True), (2, True), (1, False)])
def test_a_gradient_that_is_older_than_the_bound_is_dropped(
    bound: int | None, *, applied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_steps, "_worker", lambda: tf.constant(0, tf.int64))
    updates = tf.Variable(0, dtype=tf.int64, trainable=False)
    model = keras.Sequential([keras.Input((2,)), Others(updates), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    module = user.Module(
        pathlib.Path("model.py"), {"build_model": lambda: model, "training_data": lambda: None}
    )
    part = (np.ones((4, 2), "float32"), np.ones((4, 1), "float32"), None)
    rank_replica = replica.build(module, shape.MeshShape(), 0, "", 0, part)
    before = model.get_weights()
    spec = nest.convert(lambda leaf: tf.TensorSpec((None, *leaf.shape[1:]), leaf.dtype), part)
    traced = worker_steps.WorkerFunctions(
        tf.distribute.get_strategy(), module, rank_replica, updates, bound
    ).training(spec)
    leaves = [tf.constant(leaf) for leaf in nest.leaves(part)]
    _, was_applied, staleness, *_ = traced(tf.constant(7, tf.int64), leaves).numpy()
    assert (staleness, was_applied) == (2, applied)
    assert int(updates) == 2 + applied
    changed = [
        not np.array_equal(first, two)
        for first, two in zip(before, model.get_weights(), strict=True)
    ]
    assert changed == [applied, applied]


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
    failed = LostTwice(tf.errors.InvalidArgumentError(None, None, "a label of 9"))
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label of 9"):
        ledger.fetch(failed)
    assert failed.looks == 2


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
def test_the_first_error_is_reported_and_not_that_others_were_cancelled(
    cancelled_first: bool,
) -> None:
    users = tf.errors.InvalidArgumentError(None, None, "a label of 9")
    others = tf.errors.CancelledError(None, None, "another function was cancelled")
    results = [LostTwice(others), LostTwice(users), LostTwice(others)]
    if not cancelled_first:
        results.reverse()
    work: ledger.Ledger[int] = ledger.Ledger(Coordinator(results[:2], users), 2, int)
    for label in range(2):
        work.send(label, None, ())
    with pytest.raises(tf.errors.InvalidArgumentError, match="a label of 9"):
        while work:
            work.take()


class PendingResult:
    """A result that a test lets come."""

    def __init__(self) -> None:
        self._come = threading.Event()

    def come(self) -> None:
        self._come.set()

    def fetch(self) -> int:
        self._come.wait()
        return 7


class Workers:
    """A coordinator; what was scheduled, in order, and how often it was asked who is hung."""

    def __init__(self) -> None:
        self.scheduled: list[PendingResult] = []
        self.looks = 0
        self.hung = 1

    def schedule(self, function: Any, args: Any) -> PendingResult:
        del function, args
        self.scheduled.append(PendingResult())
        return self.scheduled[-1]

    def count_hung(self) -> int:
        self.looks += 1
        return self.hung

    def look(self, times: int) -> None:
        """Return when the ledger has looked so often again."""
        before = self.looks
        waiting.until(lambda: self.looks >= before + times, "a look at who is hung")


def test_what_a_hung_worker_takes_is_given_out_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was known to be hung before: during a long save nothing is given out."""
    monkeypatch.setattr(ledger, "_LOOK_EVERY_SECONDS", 0.01)
    workers = Workers()
    work: ledger.Ledger[str] = ledger.Ledger(workers, 4, workers.count_hung)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        work.send("a", None, ())
        task = threads.submit(work.take)
        waiting.until(lambda: len(workers.scheduled) == 2, "the piece is given out again")
        workers.look(3)
        assert len(workers.scheduled) == 2, "the hung worker has its hands full: another has this"
        workers.scheduled[1].come()
        assert task.result() == [("a", 7)]

        work.send("b", None, ())
        task = threads.submit(work.take)
        workers.look(3)
        assert len(workers.scheduled) == 3
        workers.scheduled[0].come()  # the worker is back, hangs again, and may have this one
        waiting.until(lambda: len(workers.scheduled) == 4, "the other piece is given out again")
        workers.scheduled[3].come()
        assert task.result() == [("b", 7)]
        workers.scheduled[2].come()
    assert len(work) == 0


def test_what_others_may_bring_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "_LOOK_EVERY_SECONDS", 0.01)
    workers = Workers()
    work: ledger.Ledger[str] = ledger.Ledger(workers, 4, workers.count_hung)
    with concurrent.futures.ThreadPoolExecutor() as threads:
        work.send("a", None, ())
        work.send("b", None, ())
        task = threads.submit(work.take)
        workers.look(3)
        workers.scheduled[1].come()
        assert task.result() == [("b", 7)]
        workers.hung = 0
        task = threads.submit(work.take)
        workers.look(3)
        assert len(workers.scheduled) == 2
        workers.scheduled[0].come()
        assert task.result() == [("a", 7)]


def test_what_a_step_gives_is_read_from_its_vector() -> None:
    vector = np.array([12.0, 1.0, 3.0, 0.5, 0.2, 0.3, 7.0, 8.0])
    value = types.SimpleNamespace(fetch=lambda: vector)
    counted: list[int] = []
    parts: dict[str, Any] = {
        "ledger": ledger.Ledger(Coordinator([value], RuntimeError()), 1, lambda: 0),
        "workers": types.SimpleNamespace(
            steps={"worker-12": 0}, count_step=lambda index, is_applied: counted.append(index)
        ),
        "replica": types.SimpleNamespace(
            terms=[None, None],
            by_output=lambda terms: dict(zip("ab", terms, strict=True)),
            model=types.SimpleNamespace(metrics_variables=[np.zeros(2)]),
            closures=[],
        ),
        "steps": types.SimpleNamespace(
            training=lambda spec: None, count=lambda: None, find_closures=lambda training: []
        ),
        "training": types.SimpleNamespace(spec=None),
    }
    chief = asynchronous.Asynchronous(**parts, evaluation=None)
    results, _ = chief.submit(0, [batch_division.Batch(4, [np.ones((4, 1))])], frozenset())
    step_results = [*results, *chief.drain()]
    assert counted == [12]
    assert step_results == [engine.StepResult({"loss": 0.5, "a": 0.2, "b": 0.3}, 4, True, 3)]
    assert (chief.staleness.total, chief.staleness.steps) == (3, 1)
    assert chief._states.tolist() == [7.0, 8.0]


def test_staleness_is_reported() -> None:
    total = asynchronous.Staleness()
    for staleness, applied in ((0, True), (3, True), (5, False), (0, True)):
        total.add(staleness, applied)
    assert total.values(bounded=True) == {
        "staleness_mean": 1.0,
        "staleness_max": 3.0,
        "dropped": 1.0,
    }
    assert "dropped" not in total.values(bounded=False)


def test_the_chief_answers_until_all_have_heard() -> None:
    (port,) = ports.allocate(1)
    chief = tasks.Task("chief", 0, f"127.0.0.1:{port}")
    assert control.ask(chief, "worker-0", "a") is None
    with control.Control(chief) as answers:
        assert control.ask(chief, "worker-0", "a") is control.Answer.RUN
        began = time.monotonic()
        answers.dismiss(["worker-0"], 0.2)
        assert time.monotonic() - began >= 0.2
        assert control.ask(chief, "worker-0", "a") is control.Answer.DONE
        answers.dismiss(["worker-0"], 3600)
    assert control.ask(chief, "worker-0", "a") is None


def chief_and_worker() -> Sequence[tasks.Task]:
    return [
        tasks.Task(role, 0, f"127.0.0.1:{port}")
        for role, port in zip(("chief", "worker"), ports.allocate(2), strict=True)
    ]


def test_a_worker_that_does_not_ask_for_half_a_minute_is_hung(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    time_of_test = clock.Clock()
    for module in (control, presence):
        monkeypatch.setattr(module, "time", time_of_test)
    chief, worker = chief_and_worker()
    lines: list[str] = []
    with control.Control(chief) as answers, cluster.listen(worker):
        workers = presence.Workers([worker], answers, lines.append)
        control.ask(chief, worker.name, "a")
        time_of_test.advance(30)
        workers.look()
        assert lines == []
        assert not workers.missing
        time_of_test.advance(1)
        workers.look()
        assert f"worker-0 has not asked for 30 s ({worker.address})" in lines.pop()
        assert workers.missing
        assert workers.count_hung() == 1
        control.ask(chief, worker.name, "a")
        workers.look()
    assert lines == ["worker-0 asks again"]
    assert not workers.missing


def test_a_worker_that_was_replaced_unseen_is_back() -> None:
    chief, worker = chief_and_worker()
    lines: list[str] = []
    with control.Control(chief) as answers:
        workers = presence.Workers([worker], answers, lines.append)

        def look(life: str) -> None:
            control.ask(chief, worker.name, life)
            workers.look()

        with cluster.listen(worker):
            for life in ("a", "a", "b", "b"):
                look(life)
            assert lines == ["worker-0 is back"]
            assert workers.measure_efforts() == {}, "it has made no step since"
            workers.count_step(0, is_applied=False)
            assert lines.pop() == "worker-0 makes steps again"
            workers.count_step(0)
            assert [effort.steps for effort in workers.measure_efforts().values()] == [2]
            assert workers.steps == {"worker-0": 1}
        workers.look()
        assert workers.measure_efforts() == {}
        with cluster.listen(worker):
            look("c")
            look("c")
    assert lines == [
        "worker-0 is back",
        f"worker-0 is gone ({worker.address}); it may come back there",
        "worker-0 is back",
    ]
