"""Variables that a step reads and that belong to neither the model nor its optimizer."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer import errors
from tfparallel_trainer.objective import likeness, tracing

X = np.zeros((4, 3), "float32")
SPEC = (tf.TensorSpec((None, 3), tf.float32), tf.TensorSpec((None, 3), tf.float32), None)


def trace_with(loss: Callable[[Any, Any], Any], optimizer: Any = "adam") -> tracing.Trace:
    module = ranks.module(
        lambda: keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)]),
        lambda model: model.compile(optimizer, loss, metrics=["mae"]),
    )
    (member,) = ranks.build_apart(module, (X, X, None), 1)
    return tracing.trace(member, SPEC)


def test_a_step_of_keras_own_closes_over_nothing() -> None:
    assert trace_with(keras.losses.MeanSquaredError()).closures == []


def test_a_variable_that_a_step_assigns_is_refused_for_several_replicas() -> None:
    calls = keras.Variable(0.0, trainable=False, name="calls")

    def counted(y: Any, y_pred: Any) -> Any:
        calls.assign_add(1.0)
        return keras.ops.mean(keras.ops.square(y - y_pred), axis=-1) / calls

    trace = trace_with(counted)
    tracing.check(trace, 1)
    with pytest.raises(errors.UserCodeError, match="assigns the variable calls") as raised:
        tracing.check(trace, 2)
    assert raised.value.everywhere
    assert float(calls) == 0.0, "a trace computes nothing"


def test_counts_of_layers_do_not_tell_variables_outside_the_model_apart() -> None:
    """Another process, or this one after a restart, may have counted more layers."""

    def scaled(prefix: str) -> tracing.Trace:
        with tf.name_scope(prefix):
            scale = tf.Variable(2.0, trainable=False, name="scale_1")

        def loss(y: Any, y_pred: Any) -> Any:
            return scale * keras.ops.mean(keras.ops.square(y - y_pred), -1)

        return trace_with(loss)

    first, other = scaled("dense"), scaled("dense_3")
    (closure,), (two,) = first.closures, other.closures
    two.value.assign(5.0)
    assert (closure.path, two.path) == ("dense/scale_1", "dense_3/scale_1")
    assert closure.kind == two.kind == ("dense/scale", "float32", ())
    kept = tracing.dump([two], [0])
    tracing.restore([closure], kept)
    assert float(closure.value) == 5.0
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
    described = [likeness.describe_trace(model, trace) for trace in (first, other)]
    assert described[0] == described[1]


def test_an_optimizer_of_the_users_may_close_over_variables() -> None:
    factor = tf.Variable(0.5, trainable=False, name="factor")

    class ScaledSGD(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            super().update_step(gradient * factor, variable, learning_rate)

    (closure,) = trace_with(keras.losses.MeanSquaredError(), ScaledSGD(0.1)).closures
    assert (closure.path, closure.dtype, closure.shape) == ("factor", "float32", ())
    assert not closure.is_assigned
