"""What callbacks cost where several replicas train: processes talk only where one may decide."""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import ops

import tfparallel_trainer
from testing.trainer import ranks
from tfparallel_trainer.comms import collectives
from tfparallel_trainer.keras_fit import callbacks, decisions
from tfparallel_trainer.objective import replica

# Keras' own callbacks read variables in a way that NumPy deprecates.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning")

BATCHES = 6
X = np.random.default_rng(1).normal(size=(4 * BATCHES, 3)).astype("float32")
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


def test_a_callback_waits_as_often_whatever_the_model(reads: list[str]) -> None:
    waits = []
    for layers in (1, 9):
        reads.clear()
        train(AtBatches(lambda _: reads.append("batch")), layers=layers)
        places = [place for place, name in enumerate(reads) if name == "batch"]
        waits.append(np.diff(places).tolist())
    assert min(waits[0]) == min(waits[1]), "at some batches a report comes on top"
    assert max(waits[1]) < 20


@pytest.fixture
def acts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """An entry for each time that processes talk about what callbacks have decided."""
    counts: list[int] = []
    after = decisions.Decisions.after

    def counted(shared_decisions: decisions.Decisions, call: Callable[[], bytes]) -> bytes:
        counts.append(1)
        return after(shared_decisions, call)

    monkeypatch.setattr(decisions.Decisions, "after", counted)
    return counts


def test_processes_talk_at_moments_that_a_callback_takes(acts: list[int]) -> None:
    rest = 2 + 1  # two epochs, and the start
    for observers, expected in (
        ([], rest),
        ([keras.callbacks.EarlyStopping("loss")], rest + 1),  # on_train_end
        ([keras.callbacks.LearningRateScheduler(lambda _, rate: rate)], rest + 2),
        ([AtBatches(lambda _: None)], rest + 2 * BATCHES),
        ([keras.callbacks.ProgbarLogger(), keras.callbacks.CSVLogger("/dev/null")], rest),
        ([keras.callbacks.TerminateOnNaN()], rest + 2 * BATCHES),
        ([AtTestBatches()], rest + 2 * BATCHES),
    ):
        acts.clear()
        train(*observers, epochs=2, validation_data=(X, X))
        assert len(acts) == expected, observers


def test_a_batch_without_a_decision_is_one_sum_and_one_wait(
    reads: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    replicas = replicas_of(9)
    shared_decisions = decisions.Decisions(replicas)
    shared_decisions.after(lambda: b"an answer")
    calls = collections.Counter[str]()
    monkeypatch.setattr(shared_decisions, "_tell_all", lambda _: calls.update(["told"]))
    monkeypatch.setattr(shared_decisions, "_share", lambda _: calls.update(["shared"]))
    reads.clear()
    for _ in range(3):
        assert shared_decisions.after(lambda: b"an answer") == b"an answer"
    assert reads == ["numpy"] * 3
    assert not calls


def replicas_of(layers: int) -> list[replica.Replica]:
    module = ranks.module(lambda: model(layers), lambda _: None)
    return ranks.build(module, (X, X, None), 2)


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The elements of each sum that makes changes known, as it is traced on the first replica."""
    sizes: list[int] = []
    add_up = collectives.Communicator.sum

    def counted(communicator: collectives.Communicator, tensor: tf.Tensor) -> tf.Tensor:
        if communicator._program is collectives.Program.SHARE_CHANGES and communicator.index == 0:
            sizes.append(tensor.shape.num_elements())
        return add_up(communicator, tensor)

    monkeypatch.setattr(collectives.Communicator, "sum", counted)
    return sizes


def values(one: replica.Replica) -> list[Any]:
    return [tf.convert_to_tensor(variable).numpy() for variable in one.state()]


def assert_alike(replicas: Sequence[replica.Replica]) -> None:
    for array, other in zip(*map(values, replicas), strict=True):
        np.testing.assert_array_equal(array, other)


def test_only_what_a_callback_changes_is_shared(shared: list[int]) -> None:
    replicas = replicas_of(2)
    shared_decisions = decisions.Decisions(replicas)
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
    shared_decisions = decisions.Decisions(replicas)
    weights = replicas[0].model.weights
    for place in (0, 1, 2, 3, 4, 1, 5):

        def change(place: int = place) -> bytes:
            weights[place].assign_add(tf.ones(weights[place].shape))
            return b"%d" % place

        assert shared_decisions.after(change) == b"%d" % place
        assert_alike(replicas)


class Pair:
    """Two processes in one: what the first one announces, the second one hears."""

    def __init__(self) -> None:
        self.announced: list[bytes] = []
        self.model = model(1)

    def of(self, *, leads: bool) -> "Side":
        return Side(self, leads=leads)


class Side:
    """A `reach.Reach` of one of the two."""

    def __init__(self, pair: Pair, *, leads: bool) -> None:
        self.leads = leads
        self.model = pair.model
        self._pair = pair

    def shown_to(self, callback: Any) -> Any:
        return self.model

    def after(self, call: Callable[[], bytes]) -> bytes:
        if self.leads:
            self._pair.announced.append(call())
            return self._pair.announced[-1]
        return self._pair.announced.pop(0)

    def finish(self, *, trained: bool) -> None:
        """Nothing."""


def test_a_process_without_the_chiefs_callbacks_goes_by_them() -> None:
    pair = Pair()
    batches: list[int] = []
    sides = [
        callbacks.Callbacks(
            callbacks.Plan(callbacks=callbacks_of_rank, epochs=1, steps=2, validates=False),
            pair.of(leads=leads),
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
