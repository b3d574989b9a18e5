"""What callbacks write outside the model is kept, up to what a checkpoint's index may have."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.keras_fit import model_access
from tfparallel_trainer.objective import tracing

X = np.zeros((4, 3), "float32")
SPEC = (*[tf.TensorSpec((None, 3), tf.float32)] * 2, None)


def test_variables_outside_the_model_that_callbacks_write_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(tracing, "MOST_BYTES", 16)
    factor, table = tf.Variable(1.0, name="factor"), tf.Variable(tf.ones(9), name="table")

    def loss(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        return factor * tf.reduce_mean(tf.square(y - y_pred), -1) / tf.reduce_sum(table)

    module = ranks.module(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]),
        lambda model: model.compile("sgd", loss),
    )
    (member,) = ranks.build_apart(module, (X, X, None), 1)
    member.closures.extend(tracing.trace(member, SPEC).closures)
    callbacks = model_access.ReplicatedModelAccess([member])

    def write(variable: tf.Variable, value: float) -> bytes:
        variable.assign(tf.fill(variable.shape, value))
        return b""

    def read() -> bytes:
        tf.function(lambda: tf.reduce_sum(table))()
        return b"read"

    callbacks.after(lambda: write(factor, 0.5))
    assert callbacks.after(read) == b"read"
    assert list(callbacks.dump_closures()) == ["0"]
    with pytest.raises(errors.UserCodeError, match="writes the variable table of") as raised:
        callbacks.after(lambda: write(table, 0.5))
    assert raised.value.everywhere
