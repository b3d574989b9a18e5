"""Losses that mask some of their values: each part of a batch counts what it does not mask."""

import types
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, reference, split_models, weights
from tfparallel_trainer.comms import shape

pytestmark = split_models.MARKS

BATCH, STEPS, EXAMPLES = 6, 3, 18


class MaskedActivity(keras.layers.Layer):
    def call(self, x: Any) -> Any:
        self.add_loss(0.1 * keras.ops.mean(keras.ops.square(x)))
        return x


class Positive(keras.losses.SparseCategoricalCrossentropy):
    """Counts the examples of all classes but the first, in `__call__`."""

    def __call__(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        return super().__call__(y_true, y_pred, keras.ops.cast(y_true > 0, y_pred.dtype))


def functions(outputs: int, *, adds: bool = False, loss: Any = None) -> dict[str, Any]:
    names = [f"classes_{number}" for number in range(outputs)]

    def build_model() -> Any:
        first = keras.Input((3,))
        hidden = keras.layers.Dense(4, "tanh")(first)
        if adds:
            activity = MaskedActivity()
            hidden = activity(keras.layers.Activation("sigmoid")(activity(hidden)))
        return keras.Model(
            first, {name: keras.layers.Dense(3, name=name)(hidden) for name in names}
        )

    def compile_model(model: Any) -> None:
        ignoring = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
        model.compile(keras.optimizers.SGD(0.1), dict.fromkeys(names, loss or ignoring))

    def training_data() -> tuple[Any, Any]:
        random = np.random.default_rng(3)
        x = random.normal(size=(EXAMPLES, 3))
        return x, {name: random.choice([0, 0, 1, 2], size=EXAMPLES) for name in names}

    return {
        "build_model": build_model,
        "compile_model": compile_model,
        "training_data": training_data,
    }


def assert_equals_one_process(
    job: dict[str, Any], mesh: shape.MeshShape, microbatches: int
) -> None:
    expected, losses_of_one = reference.train(
        types.SimpleNamespace(**job), STEPS, BATCH, cases.SEED
    )
    losses, difference = cases_split.train_on_mesh(job, mesh, microbatches, BATCH, expected, STEPS)
    assert losses == pytest.approx(losses_of_one, rel=1e-10)
    assert difference <= weights.TOLERANCE


@pytest.mark.parametrize("outputs", [1, 2])
def test_an_ignored_class_is_counted_over_the_whole_batch(outputs: int) -> None:
    assert_equals_one_process(functions(outputs), shape.MeshShape(stage=2), 3)


def test_what_a_layer_adds_to_a_loss_that_masks_is_not_divided_by_what_the_loss_counts() -> None:
    assert_equals_one_process(functions(1, adds=True), shape.MeshShape(data=2), 1)


def test_a_loss_that_masks_in_its_call_is_called_by_stages() -> None:
    assert_equals_one_process(
        functions(1, loss=Positive(from_logits=True)), shape.MeshShape(stage=2), 3
    )
