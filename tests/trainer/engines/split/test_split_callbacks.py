"""Callbacks of a divided model decide alike on all ranks, and see no weights."""

import csv
import itertools
import pathlib
import types
from collections.abc import Iterator
from typing import Any

import keras
import pytest
import tensorflow as tf

from testing.trainer import cases, reference, split_ranks, weights
from testing.trainer import runs as trainings
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import outputs
from tfparallel_trainer.engines.split import callback_model

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]

EPOCHS, BATCH, SEED = 9, 15, 5
KINDS = keras.callbacks


def by_keras(folder: pathlib.Path) -> tuple[list[Any], dict[str, list[float]]]:
    """The weights and the history of Keras' own fit in one process."""
    module = reference.load("split_observed")
    keras.utils.set_random_seed(SEED)
    model = module.build_model()
    module.compile_model(model)

    def batches() -> Iterator[Any]:
        for epoch in itertools.count():
            for x, y, _ in reference.batches(module, BATCH, SEED, epoch, None):
                yield x, y

    x, y, _ = next(reference.batches(module, BATCH, SEED, 0, None))
    spec = tuple(tf.TensorSpec((None, *array.shape[1:]), array.dtype) for array in (x, y))
    history = model.fit(
        tf.data.Dataset.from_generator(batches, output_signature=spec),
        epochs=EPOCHS,
        steps_per_epoch=4,
        validation_data=module.evaluation_data(),
        callbacks=module.callbacks(types.SimpleNamespace(output_dir=folder)),
        shuffle=False,
        verbose=0,
    )
    return model.get_weights(), history.history


@pytest.mark.parametrize(("processes", "devices"), [(1, 2), (2, 1)], ids=["1x2", "2x1"])
def test_they_lead_to_the_weights_of_one_process(
    processes: int, devices: int, tmp_path: pathlib.Path, runs: trainings.Runs
) -> None:
    run = runs.finish(
        "split_observed.py",
        epochs=EPOCHS,
        globalBatchSize=BATCH,
        seed=SEED,
        processes=processes,
        devices=devices,
        strategy="ModelSplit",
        mesh={"stage": 2, "microbatches": 3},
    )
    with reference.floatx():
        expected, history = by_keras(tmp_path / "keras")
    model = keras.saving.load_model(run.output / outputs.MODEL)
    assert weights.difference(model.get_weights(), expected) <= weights.TOLERANCE
    with (run.output / "log.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(history["loss"]) == 5  # of 9: it was stopped in the fifth
    for name in ("loss", "accuracy", "val_loss", "learning_rate", "twice"):
        assert [float(row[name]) for row in rows] == pytest.approx(history[name], abs=1e-10)
    assert len(set(history["learning_rate"])) == 5
    assert list((run.output / "board" / "train").iterdir())


def divided(arrays: list[Any]) -> callback_model.SplitModelAccess:
    functions = cases.CASES[0].functions(synchronized=False)
    split_replicas, _, _ = split_ranks.prepare_new(functions, shape.MeshShape(stage=2), 2)
    return callback_model.SplitModelAccess(split_replicas, arrays)


class Peeking(keras.callbacks.Callback):
    """Asks for whatever it is told to."""


@pytest.mark.parametrize(
    ("asks", "pattern"),
    [
        (lambda model: model.get_weights(), "Peeking uses model.get_weights. With strategy"),
        (lambda model: model.save("there"), "uses model.save"),
        (lambda model: model.layers, "uses model.layers"),
        (lambda model: model.optimizer.variables, "uses model.optimizer.variables"),
        (lambda model: setattr(model, "trainable", False), "sets model.trainable"),
        (lambda model: setattr(model.optimizer, "momentum", 0.5), "sets model.optimizer.momentum"),
    ],
)
def test_what_needs_the_model_is_refused(asks: Any, pattern: str) -> None:
    callback = Peeking()
    callback.set_model(divided([callback]).shown_to(callback))
    with pytest.raises(errors.UserCodeError, match=pattern):
        asks(callback.model)


@pytest.mark.parametrize(
    ("callback", "pattern"),
    [
        (KINDS.EarlyStopping(restore_best_weights=True), "give restore_best_weights=False"),
        (KINDS.TensorBoard(), "give write_graph=False"),
        (KINDS.TensorBoard(write_graph=False, histogram_freq=2), "give histogram_freq=0"),
    ],
)
def test_what_needs_the_model_later_is_refused_at_once(callback: Any, pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        divided([callback])


def test_what_they_see_is_named_as_in_a_model() -> None:
    callback = Peeking()
    reach = divided([callback])
    model = reach.shown_to(callback)
    assert isinstance(model.optimizer, keras.optimizers.Optimizer)
    assert not hasattr(model, "something") and not hasattr(model.optimizer, "optimizers")
    model.stop_training = True
    assert reach.model.stop_training
    assert model.optimizer.get_config()["name"] == model.optimizer.name
    assert [metric.name for metric in model.metrics] == [
        metric.name for metric in reach.model.metrics
    ]


def test_a_rate_reaches_all_ranks() -> None:
    callback = Peeking()
    reach = divided([callback])
    model = reach.shown_to(callback)

    def act() -> bytes:
        model.optimizer.learning_rate = 0.03125
        return b"done"

    assert reach.after(act) == b"done"
    rates = [float(rank.optimizer.keras_optimizer.learning_rate.numpy()) for rank in reach._ranks]
    assert rates == [0.03125] * 2
