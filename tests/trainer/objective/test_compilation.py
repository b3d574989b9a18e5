"""Steps that XLA compiles: the same numbers, collectives outside, models that XLA refuses."""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks, weights
from tfparallel_trainer.engines.mesh import mesh_steps
from tfparallel_trainer.objective import compilation

N, T, ROWS, BATCH = 12, 4, 7, 6
RANDOM = np.random.default_rng(0)
X, WORDS = RANDOM.normal(size=(N, T)), RANDOM.integers(0, ROWS, (N, T))
Y = RANDOM.normal(size=(N, T))


def dense() -> keras.Model:
    layers = keras.layers
    return keras.Sequential(
        [
            keras.Input((T,)),
            layers.Dense(T, "tanh", kernel_regularizer="l2"),
            layers.BatchNormalization(),
            layers.Dense(T),
        ]
    )


def dropout() -> keras.Model:
    return keras.Sequential([keras.Input((T,)), keras.layers.Dropout(0.5), keras.layers.Dense(T)])


def looked_up_twice() -> keras.Model:
    x = keras.Input((T,), dtype="int64")
    table = keras.layers.Embedding(ROWS, 3)
    joined = keras.layers.Concatenate()([table(x), table((x + 1) % ROWS)])
    return keras.Model(x, keras.layers.Dense(T)(keras.layers.Flatten()(joined)))


MODELS: dict[str, tuple[Callable[[], keras.Model], Any]] = {
    "dense": (dense, X),
    "one table, two look-ups": (looked_up_twice, WORDS),
}


def compile_model(model: keras.Model) -> None:
    model.compile(keras.optimizers.Adam(0.1), "mse", metrics=["mae"])


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("name", MODELS)
def test_compiled_steps_have_the_same_numbers(name: str, count: int) -> None:
    build, inputs = MODELS[name]
    examples = (inputs, Y, None)
    module = ranks.module(build, compile_model)
    models, losses = [], []
    for is_compiled in (False, True):
        replicas = [
            dataclasses.replace(replica, is_compiled=is_compiled)
            for replica in ranks.build(module, examples, count)
        ]
        feed = ranks.feed_of(examples, count, BATCH)
        assert not compilation.find_obstacle(replicas[0], feed.spec, BATCH // count)
        step = mesh_steps.MeshTrainStep(module, replicas, feed.spec, BATCH)
        results = [
            step(number, batch, frozenset()) for number, batch in enumerate(feed.epoch(0, 0))
        ]
        losses.append([result.loss for result in results])
        models.append(replicas[-1].model)
    plain, compiled = (model.get_weights() for model in models)
    assert weights.difference(compiled, plain) <= 1e-10
    assert losses[1] == pytest.approx(losses[0], rel=1e-12)
    graph = step._function((True,) * count, False).graph
    programs = [op for op in graph.get_operations() if is_program(op)]
    assert len(programs) == (count if count > 1 else 0)
    assert is_program(step._function((True,) * count, False).function_def) == (count == 1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("count", [1, 2])
def test_what_xla_draws_repeats_but_differs_from_what_tensorflow_draws(count: int) -> None:
    module = ranks.module(dropout, compile_model)
    trained = []
    for is_compiled in (False, True, True):
        replicas = [
            dataclasses.replace(replica, is_compiled=is_compiled)
            for replica in ranks.build(module, (X, Y, None), count)
        ]
        feed = ranks.feed_of((X, Y, None), count, BATCH)
        step = mesh_steps.MeshTrainStep(module, replicas, feed.spec, BATCH)
        for number, batch in enumerate(feed.epoch(0, 0)):
            step(number, batch, frozenset())
        trained.append(replicas[0].model.get_weights())
    plain, first, second = trained
    assert weights.difference(first, second) == 0
    assert weights.difference(first, plain) > 1e-3


def is_program(node: Any) -> bool:
    """Whether XLA compiles a function, or the one that an operation calls."""
    if isinstance(node, tf.Operation):
        return "_XlaMustCompile" in node.node_def.attr
    return bool(node.attr["_XlaMustCompile"].b)


def scripted() -> keras.Model:
    def call(x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda a: a, [x], x.dtype), x.shape)

    return keras.Sequential(
        [keras.Input((T,)), keras.layers.Lambda(call, (T,)), keras.layers.Dense(T)]
    )


def masked() -> keras.Model:
    layers = keras.layers
    return keras.Sequential([keras.Input((T, 1)), layers.Masking(0.0), layers.Dense(1)])


def synchronized() -> keras.Model:
    normalization = keras.layers.BatchNormalization(synchronized=True)
    return keras.Sequential([keras.Input((T,)), normalization, keras.layers.Dense(T)])


@pytest.mark.parametrize(
    ("build", "count", "examples", "obstacle"),
    [
        (scripted, 1, (X, Y, None), "it does not know the operation PyFunc (sequential"),
        (masked, 1, (X[..., None], Y[..., None], None), ""),
        (masked, 2, (X[..., None], Y[..., None], None), "masks or weights of all replicas decide"),
        (synchronized, 1, (X, Y, None), ""),
        (synchronized, 2, (X, Y, None), "layers add up over replicas within the forward pass"),
    ],
)
def test_what_xla_cannot_compile_is_named(
    build: Callable[[], keras.Model], count: int, examples: Any, obstacle: str
) -> None:
    module = ranks.module(build, lambda model: model.compile("sgd", "mse"))
    replicas = ranks.build_apart(module, examples, count)
    before = replicas[0].model.get_weights()
    spec = ranks.feed_of(examples, count, BATCH).spec
    sentence = compilation.find_obstacle(replicas[0], spec, BATCH // count)
    assert sentence.startswith(obstacle)
    assert bool(sentence) == bool(obstacle)
    assert weights.difference(replicas[0].model.get_weights(), before) == 0


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (
            "on XLA_CPU_JIT: _Arg (No registered '_Arg' OpKernel for XLA_CPU_JIT devices "
            "compatible with node {{node x}}",
            "the data has values that it does not know, such as texts",
        ),
        (
            "Input 1 to node `lambda/range` with op Range must be a compile-time constant.",
            "the shape that Range (lambda/range) makes depends on data",
        ),
        ("RET_CHECK\nfailure", "RET_CHECK failure"),
    ],
)
def test_messages_of_tensorflow_become_sentences(message: str, sentence: str) -> None:
    assert compilation._describe(message) == sentence
