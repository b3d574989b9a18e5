"""What callbacks cost where several replicas train: processes talk only where one may decide."""

import collections
import pathlib
import re
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tfparallel_trainer
from testing import paths
from testing.trainer import ranks
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.keras_fit import callbacks, model_access
from tfparallel_trainer.objective import evaluate, replica

# Keras' own callbacks read variables in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

BATCHES = 6
X = np.random.default_rng(1).normal(size=(4 * BATCHES, 3)).astype("float32")
MOMENTS = (
    *("on_train_begin", "on_train_end", "on_epoch_begin", "on_epoch_end"),
    *("on_train_batch_begin", "on_train_batch_end", "on_test_begin", "on_test_end"),
    *("on_test_batch_begin", "on_test_batch_end"),
)
READS = ("numpy", "__bool__", "__int__", "__float__")
"""What waits for a value of a tensor."""


@pytest.fixture(autouse=True)
def two_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", "2")


def model(layers: int) -> Any:
    built = keras.Sequential([keras.Input((3,))])
    for _ in range(layers):
        built.add(keras.layers.Dense(3))
    built.compile("adam", "mse", metrics=["mae"])
    return built


def train(*observers: Any, layers: int = 2, epochs: int = 1, **more: Any) -> Any:
    return tfparallel_trainer.fit(
        model(layers),
        X,
        X,
        batch_size=4,
        epochs=epochs,
        callbacks=list(observers),
        verbose=0,
        **more,
    )


class AtBatches(keras.callbacks.Callback):
    """Does something after each batch."""

    def __init__(self, call: Callable[[int], Any]) -> None:
        super().__init__()
        self.call = call

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.call(batch)


class AtTestBatches(keras.callbacks.Callback):
    """May do something after each batch of an evaluation."""

    def on_test_batch_end(self, batch: int, logs: Any = None) -> None:
        """Do nothing."""


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Each time that something waits for a tensor's value."""
    names: list[str] = []

    def counted(name: str) -> Callable[..., Any]:
        read = getattr(ops._EagerTensorBase, name)

        def waits(tensor: Any) -> Any:
            if threading.current_thread() is threading.main_thread():  # another prepares batches
                names.append(name)
            return read(tensor)

        return waits

    for name in READS:
        monkeypatch.setattr(ops._EagerTensorBase, name, counted(name))
    return names


@pytest.fixture
def reports(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each sum of the metrics that is no part of a step."""
    counts: list[int] = []
    report = evaluate.MetricReduction.__call__

    def counted(metrics_report: evaluate.MetricReduction, numbers: Any) -> Any:
        counts.append(1)
        return report(metrics_report, numbers)

    monkeypatch.setattr(evaluate.MetricReduction, "__call__", counted)
    return counts


def test_a_callback_waits_as_often_whatever_the_model(reads: list[str], reports: list[int]) -> None:
    waits = []
    for layers in (1, 9):
        reads.clear()
        train(AtBatches(lambda _: reads.append("batch")), layers=layers, verify="Off")
        places = [index for index, name in enumerate(reads) if name == "batch"]
        waits.append(np.diff(places).tolist())
    assert min(waits[0]) == min(waits[1]), "at some batches a report comes on top"
    assert max(waits[1]) < 20
    assert not reports, "the steps give the metrics"


def test_batches_have_the_metrics_that_keras_gives() -> None:
    epochs_of_logs: list[list[dict[str, float]]] = []

    class Note(keras.callbacks.Callback):
        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            epochs_of_logs[-1].append(dict(logs))

    for fit in (tfparallel_trainer.fit, keras.Model.fit):
        keras.utils.set_random_seed(1)
        epochs_of_logs.append([])
        fit(model(2), X, X, batch_size=4, callbacks=[Note()], verbose=0, shuffle=False)
    assert len(epochs_of_logs[0]) == BATCHES
    for batch, expected in zip(*epochs_of_logs, strict=True):
        assert batch == pytest.approx(expected, rel=1e-5)


def test_callbacks_get_logs_at_every_moment_as_from_keras() -> None:
    calls: list[list[tuple[str, tuple[Any, ...]]]] = []

    def noting(moment: str) -> Callable[..., None]:
        if "batch" in moment or "epoch" in moment:
            return lambda number, logs: calls[-1].append((moment, (number, type(logs))))
        return lambda logs: calls[-1].append((moment, (type(logs),)))

    for fit in (tfparallel_trainer.fit, keras.Model.fit):
        calls.append([])
        callback = keras.callbacks.Callback()
        for moment in MOMENTS:
            setattr(callback, moment, noting(moment))
        more = {"validation_data": (X, X), "validation_batch_size": 4}
        fit(model(2), X, X, batch_size=4, epochs=2, callbacks=[callback], verbose=0, **more)
    ours, keras_own = calls
    assert {moment for moment, _ in ours} == set(MOMENTS)
    assert ours == keras_own


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each time that processes talk about what callbacks have decided."""
    counts: list[int] = []
    after = model_access.ReplicatedModelAccess.after

    def counted(
        shared_decisions: model_access.ReplicatedModelAccess, call: Callable[[], bytes]
    ) -> bytes:
        counts.append(1)
        return after(shared_decisions, call)

    monkeypatch.setattr(model_access.ReplicatedModelAccess, "after", counted)
    return counts


def test_processes_talk_at_moments_that_a_callback_takes(acts: list[int]) -> None:
    calls = 2 + 1  # two epochs, and the start
    for observers, expected in (
        ([], calls),
        ([keras.callbacks.EarlyStopping("loss")], calls + 1),  # on_train_end
        ([keras.callbacks.LearningRateScheduler(lambda _, rate: rate)], calls + 2),
        ([AtBatches(lambda _: None)], calls + 2 * BATCHES),
        ([keras.callbacks.ProgbarLogger(), keras.callbacks.CSVLogger("/dev/null")], calls),
        ([keras.callbacks.TerminateOnNaN()], calls + 2 * BATCHES),
        ([AtTestBatches()], calls + 2 * BATCHES),
    ):
        acts.clear()
        train(*observers, epochs=2, validation_data=(X, X))
        assert len(acts) == expected, observers


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> collections.Counter[str]:
    """How often replicas talk to each other about a decision, by what they tell."""
    counts = collections.Counter[str]()
    for name in ("_exchange", "_share"):
        talk = getattr(model_access.ReplicatedModelAccess, name)

        def counted(owner: Any, *arguments: Any, name: str = name, talk: Any = talk) -> Any:
            counts[name] += 1
            return talk(owner, *arguments)

        monkeypatch.setattr(model_access.ReplicatedModelAccess, name, counted)
    return counts


def read_all(member: replica.Replica) -> None:
    """Read in all ways in which callbacks do."""
    member.model.get_weights()
    float(member.optimizer.learning_rate)
    keras.ops.sum(member.model.weights[0])
    member.model(X[:2])


@pytest.mark.parametrize("is_local", [True, False])
def test_a_batch_without_a_decision_is_one_sum_at_most(
    reads: list[str], sums: collections.Counter[str], *, is_local: bool
) -> None:
    replicas = replicas_of(9)
    shared_decisions = decisions_of(replicas, is_local=is_local)
    shared_decisions.after(lambda: b"an answer")
    sums.clear()
    for _ in range(3):
        read_all(replicas[0])
        reads.clear()
        assert shared_decisions.after(lambda: b"an answer") == b"an answer"
        assert reads == ([] if is_local else ["numpy"])

        def look() -> bytes:
            read_all(replicas[0])
            return b"an answer"

        shared_decisions.after(look)
    assert sums == ({} if is_local else {"_exchange": 6})


def decisions_of(
    replicas: Sequence[replica.Replica], *, is_local: bool
) -> model_access.ReplicatedModelAccess:
    """Decisions that take the way of one process, or that of several."""
    shared_decisions = model_access.ReplicatedModelAccess(replicas)
    shared_decisions._is_local = is_local
    return shared_decisions


@pytest.mark.parametrize("is_local", [True, False])
def test_what_a_callback_writes_is_everywhere_however_it_writes(*, is_local: bool) -> None:
    replicas = replicas_of(2)
    shared_decisions = decisions_of(replicas, is_local=is_local)
    first = replicas[0]
    kernel = first.model.weights[0]
    ones = tf.ones(kernel.shape)
    traced = tf.function(lambda: kernel.assign_add(ones))
    writes: dict[str, Callable[[], Any]] = {
        "Keras": lambda: kernel.assign_add(ones),
        "TensorFlow": lambda: kernel.value.assign(kernel.value * 2.0),
        "rows": lambda: kernel.value.scatter_nd_update([[0]], ones[:1]),
        "a traced function": traced,
        "a function that is traced": lambda: tf.function(lambda: kernel.assign(ones))(),
        "all weights": lambda: first.model.set_weights([w + 1 for w in first.model.get_weights()]),
        "a step": lambda: first.optimizer.apply([ones], [kernel]),
        "the optimizer": lambda: setattr(first.optimizer, "learning_rate", 0.125),
    }
    for method, write in writes.items():
        before = values(first)

        def change(write: Callable[[], Any] = write) -> bytes:
            write()
            return b""

        shared_decisions.after(change)
        assert any(
            not np.array_equal(array, other)
            for array, other in zip(before, values(first), strict=True)
        ), method
        assert_alike(replicas)


def replicas_of(layers: int) -> list[replica.Replica]:
    module = ranks.module(lambda: model(layers), lambda _: None)
    return ranks.build(module, (X, X, None), 2)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each sum that makes changes known, as it is traced on the first replica."""
    monkeypatch.setattr(collectives, "GATHERED_BYTES", 0)
    sizes: list[int] = []
    add_up = collectives.Communicator.sum

    def counted(communicator: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
        if communicator._program is collectives.Program.SHARE_CHANGES and communicator.index == 0:
            sizes.append(tensor.shape.num_elements())
        return add_up(communicator, tensor)

    monkeypatch.setattr(collectives.Communicator, "sum", counted)
    return sizes


def values(member: replica.Replica) -> list[Any]:
    return [tf.convert_to_tensor(variable).numpy() for variable in member.state()]


def assert_alike(replicas: Sequence[replica.Replica]) -> None:
    for array, other in zip(*map(values, replicas), strict=True):
        np.testing.assert_array_equal(array, other)


def test_only_what_a_callback_changes_is_shared(shared: list[int]) -> None:
    replicas = replicas_of(2)
    shared_decisions = model_access.ReplicatedModelAccess(replicas)
    optimizer = replicas[0].optimizer
    for rate in (0.5, 0.25):

        def change(rate: float = rate) -> bytes:
            optimizer.learning_rate.assign(rate)
            return b""

        shared_decisions.after(change)
        assert float(tf.convert_to_tensor(replicas[1].optimizer.learning_rate)) == rate
    assert shared == [1, 1], "traced once: the numbers that go along, and the rate"
    assert_alike(replicas)


def test_any_sets_of_variables_are_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectives, "MAX_VARIANTS", 4)
    replicas = replicas_of(3)
    shared_decisions = model_access.ReplicatedModelAccess(replicas)
    weights = replicas[0].model.weights
    for stop in (0, 1, 2, 3, 4, 1, 5):

        def change(stop: int = stop) -> bytes:
            weights[stop].assign_add(tf.ones(weights[stop].shape))
            return b"%d" % stop

        assert shared_decisions.after(change) == b"%d" % stop
        assert_alike(replicas)


class Pair:
    """Two processes in one: what the first one announces, the second one hears."""

    def __init__(self) -> None:
        self.announced: list[bytes] = []
        self.model = model(1)

    def side(self, *, leads: bool) -> "Side":
        return Side(self, leads=leads)


class Side:
    """A `model_access.ModelAccess` of one of the two."""

    changes = 0

    def __init__(self, pair: Pair, *, leads: bool) -> None:
        self.leads = leads
        self.changes = 0
        self.model = pair.model
        self._pair = pair

    def shown_to(self, callback: Any) -> Any:
        return self.model

    def after(self, call: Callable[[], bytes]) -> bytes:
        if self.leads:
            self._pair.announced.append(call())
            return self._pair.announced[-1]
        return self._pair.announced.pop(0)

    def dump_closures(self) -> Mapping[str, Any]:
        return {}

    def restore_closures(self, values: Mapping[str, Any]) -> None:
        """Nothing."""

    def finish(self, *, trained: bool) -> None:
        """Nothing."""


def test_a_process_without_the_chiefs_callbacks_goes_by_them() -> None:
    pair = Pair()
    batches: list[int] = []
    sides = [
        callbacks.Callbacks(
            callbacks.CallbackSchedule(
                callbacks=callbacks_of_rank, epochs=1, steps=2, validates=False
            ),
            pair.side(leads=leads),
            lambda: pair.model,
        )
        for callbacks_of_rank, leads in (
            ([AtBatches(batches.append), keras.callbacks.TerminateOnNaN()], True),
            ([], False),
        )
    ]
    for side in sides:
        side.training_begins()
        assert side.each_batch
        assert side.takes_non_finite
    for moment, facts in (
        ("epoch_begins", (0,)),
        ("batch_begins", (0,)),
        ("batch_ends", (0, {"loss": 1.0})),
        ("epoch_ends", (0, {"loss": 1.0})),
        ("training_ends", ()),
    ):
        for side in sides:
            getattr(side, moment)(*facts)
        assert not pair.announced, moment
    assert batches == [0]


def test_the_profile_of_the_page_has_the_steps_of_its_window(tmp_path: pathlib.Path) -> None:
    page = (paths.ROOT / "docs/how-to/tensorboard.md").read_text()
    (block,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(block, "tensorboard.md", "exec"), names)  # noqa: S102
    train(*names["callbacks"](types.SimpleNamespace(output_dir=tmp_path)), epochs=4)
    assert list((tmp_path / "profile/train/plugins/profile").glob("*/*.xplane.pb"))
