"""A script that is started again trains on the data on which it would have trained."""

import functools
import itertools
import pathlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import tfparallel_trainer
from testing.trainer import weights
from testing.trainer.models import fitted
from tfparallel_trainer import errors
from tfparallel_trainer.data import batches

EXAMPLES = 12
BATCH = 4
EPOCHS = 4


def examples() -> tf.data.Dataset:
    numbers = np.arange(EXAMPLES)
    return tf.data.Dataset.from_tensor_slices((numbers[:, None], numbers))


def captured() -> tf.data.Dataset:
    shuffled = examples().shuffle(EXAMPLES, seed=7)
    return tf.data.Dataset.range(2).flat_map(lambda _: shuffled)


class Shuffled(keras.utils.PyDataset):
    """Shuffles itself as classes of people's own do."""

    def __init__(self) -> None:
        super().__init__()
        self.random = np.random.default_rng(3)
        self.order = np.arange(EXAMPLES)

    def __len__(self) -> int:
        return EXAMPLES // BATCH

    def __getitem__(self, index: int) -> Any:
        numbers = self.order[BATCH * index : BATCH * (index + 1)]
        return numbers[:, None], numbers

    def on_epoch_end(self) -> None:
        self.random.shuffle(self.order)


def generated() -> Iterator[Any]:
    random = np.random.default_rng(5)
    while True:
        order = random.permutation(EXAMPLES)
        for start in range(0, EXAMPLES, BATCH):
            numbers = order[start : start + BATCH]
            yield numbers[:, None], numbers


PASSES: dict[str, Callable[[], Any]] = {
    "in order": lambda: examples().batch(BATCH),
    "shuffled": lambda: examples().shuffle(EXAMPLES, seed=7).batch(BATCH).prefetch(2),
    "shuffled once": lambda: (
        examples().shuffle(EXAMPLES, seed=7, reshuffle_each_iteration=False).batch(BATCH)
    ),
    "mapped": lambda: (
        examples()
        .cache()
        .shuffle(EXAMPLES, seed=7)
        .map(lambda x, y: (x, y), num_parallel_calls=2)
        .batch(BATCH, num_parallel_calls=2)
    ),
    "shuffled batches": lambda: (
        examples().shuffle(EXAMPLES, seed=7).batch(BATCH).shuffle(3, seed=8)
    ),
    "cached": lambda: examples().shuffle(EXAMPLES, seed=7).cache().batch(BATCH),
    "filtered": lambda: (
        examples().shuffle(EXAMPLES, seed=7).filter(lambda _, y: y >= 0).padded_batch(BATCH)
    ),
    "PyDataset": Shuffled,
}
"""Data whose pass is all examples once."""

REPEATED: dict[str, Callable[[], Any]] = {
    "repeated": lambda: examples().shuffle(EXAMPLES, seed=7).repeat(2).batch(BATCH),
    "concatenated": lambda: (
        examples().concatenate(examples().shuffle(EXAMPLES, seed=7)).batch(BATCH)
    ),
    "captured": lambda: captured().batch(BATCH),
    "enumerated": lambda: (
        examples()
        .shuffle(EXAMPLES, seed=7)
        .repeat(2)
        .enumerate()
        .map(lambda _, example: example)
        .batch(BATCH)
    ),
}
"""Data whose pass is all examples twice."""

ENDLESS: dict[str, Callable[[], Any]] = {
    "endless": lambda: examples().shuffle(EXAMPLES, seed=7).repeat().batch(BATCH),
    "generator": generated,
}


def source(data: Any, steps: int | None = None, first: int = 0) -> batches.BatchedDataset:
    opened = batches.opened(data, "x", 1)
    assert opened is not None
    return batches.BatchedDataset(opened, steps, None, first_epoch=first)


def epoch(of: batches.BatchedDataset, number: int) -> list[list[int]]:
    return [np.asarray(batch[1]).tolist() for batch in of.epoch(number)]


def concatenate(lists: list[Any]) -> list[Any]:
    return list(itertools.chain.from_iterable(lists))


def assert_goes_on(
    make: Callable[[], Any], steps: int | None = None, first: int = 0
) -> list[list[list[int]]]:
    """Assert that a restart in each epoch gives its batches and those after it; give them all."""
    whole = source(make(), steps, first)
    epochs = [epoch(whole, number) for number in range(first, first + EPOCHS)]
    for index in range(EPOCHS):
        restarted = source(make(), steps, first)
        numbers = range(first + index, first + EPOCHS)
        assert [epoch(restarted, number) for number in numbers] == epochs[index:]
    return epochs


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("first", [0, 2])
def test_a_restart_gives_each_example_once_in_each_epoch(name: str, first: int) -> None:
    for batches_of_epoch in assert_goes_on(PASSES[name], first=first):
        assert sorted(concatenate(batches_of_epoch)) == list(range(EXAMPLES))


@pytest.mark.parametrize("name", REPEATED)
def test_a_restart_goes_on_in_a_pass_that_has_several(name: str) -> None:
    for batches_of_epoch in assert_goes_on(REPEATED[name]):
        assert sorted(concatenate(batches_of_epoch)) == sorted([*range(EXAMPLES)] * 2)


@pytest.mark.parametrize("name", PASSES | REPEATED)
@pytest.mark.parametrize("steps", [1, 2, 3, 5])
def test_a_restart_goes_on_in_epochs_of_steps(name: str, steps: int) -> None:
    make = (PASSES | REPEATED)[name]
    if name == "filtered" and steps in (1, 3):
        return  # nobody knows that such data are at their end: Keras makes an epoch of no batches
    assert_goes_on(make, steps)


@pytest.mark.parametrize("name", ENDLESS)
@pytest.mark.parametrize("first", [0, 3])
def test_a_restart_goes_on_in_endless_data(name: str, first: int) -> None:
    epochs = assert_goes_on(ENDLESS[name], steps=2, first=first)
    rows = concatenate(concatenate(epochs))
    passes = [rows[at : at + EXAMPLES] for at in range(0, 2 * EXAMPLES, EXAMPLES)]
    assert [sorted(numbers) for numbers in passes] == [list(range(EXAMPLES))] * 2
    assert passes[0] != passes[1]


def test_passes_that_are_left_out_are_not_read() -> None:
    read = []

    def elements() -> Iterator[int]:
        for number in range(EXAMPLES):
            read.append(number)
            yield number

    data = tf.data.Dataset.from_generator(
        elements, output_signature=tf.TensorSpec((), tf.int64)
    ).map(lambda x: (x[None], x))
    stream = source(data.shuffle(2, seed=7).batch(BATCH))
    epoch(stream, 3)
    assert len(read) <= 2 * EXAMPLES, "for the first batch, and in the pass that is made"


class Stop(keras.callbacks.Callback):
    """Raises after some steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.left = steps

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


ROWS = fitted.CASES["batch_size"].data
DATA: dict[str, Callable[[], dict[str, Any]]] = {
    "arrays": lambda: {**ROWS(), "batch_size": 13},
    "arrays in steps": lambda: {**ROWS(), "batch_size": 13, "steps_per_epoch": 3},
    "data set": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((ROWS()["x"], ROWS()["y"]))
        .shuffle(52, seed=7)
        .batch(13)
    },
    "data set in steps": lambda: {
        "x": tf.data.Dataset.from_tensor_slices((ROWS()["x"], ROWS()["y"]))
        .shuffle(52, seed=7)
        .repeat()
        .batch(13),
        "steps_per_epoch": 3,
    },
    "generator": lambda: {**fitted.CASES["generator"].data(), "steps_per_epoch": 3},
    "PyDataset": fitted.CASES["PyDataset"].data,
}


def train(name: str, **more: Any) -> list[Any]:
    """Train on data, and return the weights; other tests are about checks of steps."""
    model = fitted.CASES["epochs"].build()
    tfparallel_trainer.fit(model, **DATA[name](), epochs=5, verbose=0, verify="Off", **more)
    return list(model.get_weights())


@functools.cache
def train_at_once(name: str) -> list[Any]:
    """The weights of one run on one device."""
    return train(name)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", DATA)
@pytest.mark.parametrize("devices", [1, 2])
def test_a_restart_leads_to_the_weights_of_one_run(
    name: str, devices: int, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = train_at_once(name)
    monkeypatch.setenv("TFPARALLEL_CPU_DEVICES", str(devices))
    where = {"output_dir": tmp_path, "save_every_steps": 1}
    with pytest.raises(KeyboardInterrupt):
        train(name, **where, callbacks=[Stop(9)])  # in a later epoch
    assert weights.difference(train(name, **where), expected) <= weights.TOLERANCE


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"x": examples().shuffle(4).batch(BATCH)}, "x shuffles without a seed"),
        (
            {
                "x": (both := examples().shuffle(4, seed=1)).skip(4).batch(BATCH),
                "validation_data": both.take(4).batch(BATCH),
            },
            "x and validation_data share a shuffle",
        ),
    ],
)
def test_data_in_which_a_restart_would_go_wrong_are_refused(
    data: dict[str, Any], message: str, tmp_path: pathlib.Path
) -> None:
    with pytest.raises(errors.UserCodeError, match=message):
        model = fitted.CASES["epochs"].build()
        tfparallel_trainer.fit(model, **data, output_dir=tmp_path, verbose=0)
