"""A graph computes what its model computes, without the model's weights."""

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing import repeats
from testing.trainer import split_models
from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import keys
from tfparallel_trainer.engines.split.model import initial_values, interpreter, recording

pytestmark = split_models.MARKS


@pytest.mark.parametrize("training", repeats.some([False, True], [True]))
@pytest.mark.parametrize("name", split_models.ALL)
def test_the_graph_of_a_bare_model_computes_what_the_model_does(name: str, training: bool) -> None:
    model = split_models.eager(split_models.ALL[name])
    model_graph = recording.record(split_models.bare(split_models.ALL[name]))
    inputs = split_models.inputs_of(model, 3)
    mine = split_models.run(model_graph, inputs, split_models.values(model), training)
    expected = model(inputs, training=training)
    keras.tree.assert_same_structure(mine.outputs, expected)
    for actual, other in zip(
        keras.tree.flatten(mine.outputs), keras.tree.flatten(expected), strict=True
    ):
        np.testing.assert_allclose(actual, other, rtol=0, atol=1e-12)
    after = split_models.values(model)
    for key, value in mine.changed.items():
        np.testing.assert_allclose(value, after[key], rtol=0, atol=1e-12)
    changed = {
        key
        for key, array in split_models.values(split_models.eager(split_models.ALL[name])).items()
        if not np.array_equal(array, after[key])
    }
    assert changed == set(mine.changed)


@pytest.mark.parametrize("name", repeats.some(split_models.ALL, ("shared", "nested", "own_layers")))
def test_keys_are_those_of_the_checkpoints_of_the_whole_model(name: str) -> None:
    whole = keys.of_weights(split_models.eager(split_models.ALL[name]))
    model_graph = recording.record(split_models.bare(split_models.ALL[name]))
    weights = {key: variable for key, variable in model_graph.variables.items() if key in whole}
    assert list(weights) == list(whole)
    assert [variable.shape for variable in weights.values()] == [
        variable.shape for variable in whole.values()
    ]
    read = {key for node in model_graph.nodes for key in node.variables}
    assert read == set(model_graph.variables)


def test_inputs_are_taken_by_name_or_in_order() -> None:
    model = split_models.eager(split_models.shared)
    model_graph = recording.record(model)
    second, first = split_models.inputs_of(model, 3)
    expected = model([second, first])
    for inputs in ([second, first], {"first": first, "second": second}):
        mine = split_models.run(
            model_graph, inputs, split_models.values(model), training=False
        ).outputs
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="the input first is not among second"):
        interpreter.by_number(model_graph, {"second": second})
    with pytest.raises(ValueError, match="there are 1 inputs, and the model has 2"):
        interpreter.by_number(model_graph, [second])


@pytest.mark.parametrize("shape", [(3,), (3, 1, 1)])
def test_a_last_axis_of_one_may_be_left_out_or_be_there(shape: tuple[int, ...]) -> None:
    model = split_models.eager(lambda: keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)]))
    model_graph = recording.record(model)
    x = np.array([1.0, 2.0, 3.0]).reshape(shape)
    mine = split_models.run(model_graph, x, split_models.values(model), training=False).outputs
    np.testing.assert_allclose(mine, model(x.reshape(3, 1)), rtol=0, atol=1e-12)


def test_losses_that_layers_add_exclude_those_of_weights() -> None:
    model = split_models.eager(split_models.own_layers)
    model_graph = recording.record(model)
    inputs = split_models.inputs_of(model, 3)
    added = split_models.run(
        model_graph, inputs, split_models.values(model), training=False
    ).added_losses
    model(inputs)
    np.testing.assert_allclose(added, model.losses[:1], rtol=0, atol=1e-12)
    assert len(model.losses) == 2


def test_the_mask_of_an_output_is_passed_on() -> None:
    model_graph = recording.record(split_models.bare(split_models.masked))
    tokens = np.array([[3, 0, 1, 0, 0]])
    mine = split_models.run(
        model_graph,
        tokens,
        split_models.values(split_models.eager(split_models.masked)),
        training=False,
    )
    np.testing.assert_array_equal(mine.masks["output"], tokens != 0)


class Embedded(keras.layers.Layer):
    """Gives what a layer within it gives, with the mask that this one hangs on it."""

    def __init__(self) -> None:
        super().__init__(name="embedded")
        self.table = keras.layers.Embedding(5, 3, mask_zero=True)

    def build(self, shape: Any) -> None:
        self.table.build(shape)

    def call(self, tokens: Any) -> Any:
        return self.table(tokens)


@pytest.mark.parametrize(
    "layer", [Embedded, lambda: keras.layers.ReversibleEmbedding(5, 3, mask_zero=True)]
)
def test_a_mask_that_keras_does_not_know_is_refused(layer: Callable[[], Any]) -> None:
    tokens = keras.Input((4,), dtype="int64")
    model = keras.Model(tokens, keras.layers.LSTM(2)(layer()(tokens)))
    inputs = np.array([[1, 2, 0, 0]])
    with pytest.raises(errors.UserCodeError, match=r"embed.* hangs a mask on what it gives"):
        split_models.run(recording.record(model), inputs, split_models.values(model), False)


def test_nested_models_become_calls() -> None:
    names = [node.name for node in recording.record(split_models.bare(split_models.nested)).nodes]
    assert sum(name.startswith("inner/") for name in names) == 4  # two calls of two nodes each
    assert [name for name in names if name.startswith("tower/")] == [
        "tower/dense_1",
        "tower/inner/dense",
        "tower/inner/add",
    ]
    assert len(set(names)) == len(names)


class Method(keras.Model):
    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def compiled_by_name() -> Any:
    model = split_models.skips()
    model.compile("sgd", "mse")
    return model


def compiled_with_an_optimizer() -> Any:
    model = split_models.skips()
    optimizer = keras.optimizers.Adam(0.1)
    model.compile(optimizer, "mse")
    return model


def pretrained() -> Any:
    model = split_models.skips()
    model.set_weights([np.ones(weight.shape) for weight in model.weights])
    return model


def adapted() -> Any:
    scale = keras.layers.Normalization()
    scale.adapt(np.arange(6.0).reshape(3, 2))
    return keras.Sequential([keras.Input((2,)), scale, keras.layers.Dense(1)])


def imagenet() -> Any:
    return keras.applications.MobileNet(weights="no_such.weights.h5", input_shape=(32, 32, 3))


def by_value() -> Any:
    model = split_models.skips()
    model.extra = keras.Variable(np.ones(3))
    return model


@pytest.mark.parametrize(
    ("build", "pattern"),
    [
        (compiled_by_name, "build_model compiles the model, .* a function compile_model"),
        (compiled_with_an_optimizer, "build_model compiles the model, .* compile_model"),
        (pretrained, "assigns a value to dense.*/kernel, .* trainer.initialWeights"),
        (adapted, r"layer normalization.* adapt\(\), which is lost .* Normalization\(mean="),
        (imagenet, "build_model loads weights .*weights=None.* trainer.initialWeights"),
        (by_value, "creates a variable from a value, .* give an initializer"),
        (Method, "Method computes its outputs in a method, .* MultiWorkerMirrored"),
        (lambda: keras.Sequential([keras.layers.Dense(1)]), "does not know the shape of its input"),
        (lambda: 3, "build_model returns int"),
    ],
)
def test_what_cannot_be_split_is_refused(build: Callable[[], Any], pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        recording.record(split_models.bare(build))


@pytest.mark.parametrize("name", repeats.some(split_models.ALL, ("shared", "nested", "own_layers")))
def test_parts_are_those_of_the_whole_model(name: str) -> None:
    whole = {
        key: np.array(array)
        for key, array in keys.of_weights(split_models.eager(split_models.ALL[name])).items()
    }
    skeleton_weights = keys.of_weights(split_models.bare(split_models.ALL[name]))
    for half in (0, 1):
        parts = {
            key: (slice(half * (array.shape[0] // 2), (half + 1) * (array.shape[0] // 2)),)
            for key, array in whole.items()
        }
        for key, part in initial_values.draw_values(skeleton_weights, parts):
            np.testing.assert_array_equal(part, whole[key][parts[key]])
    for key, value in initial_values.draw_values(skeleton_weights, dict.fromkeys(whole, ())):
        np.testing.assert_array_equal(value, whole[key])


def large() -> Any:
    """Eight weights of 2 MB each."""
    width = [keras.layers.Dense(512, use_bias=False) for _ in range(8)]
    return keras.Sequential([keras.Input((512,)), *width])


def drawn_one_by_one() -> tuple[int, int]:
    """Bytes that the model keeps without weights, and the most while a part of each is drawn."""
    keras.config.set_dtype_policy("float64")
    before = tf.config.experimental.get_memory_info("CPU:0")["current"]
    weights = keys.of_weights(split_models.bare(large))
    kept = tf.config.experimental.get_memory_info("CPU:0")["current"] - before
    tf.config.experimental.reset_memory_stats("CPU:0")
    parts = dict(initial_values.draw_values(weights, dict.fromkeys(weights, (slice(0, 8),))))
    assert len(parts) == 8
    return kept, tf.config.experimental.get_memory_info("CPU:0")["peak"] - before


def test_one_whole_variable_is_in_memory_at_a_time(isolated: Callable[..., Any]) -> None:
    kept, peak = isolated(drawn_one_by_one)
    assert kept < 1 << 18
    assert peak < 4 * 512 * 512 * 8  # drawing one takes three times its size


def part_run() -> int:
    """Bytes that are kept after the first of eight layers was run."""
    keras.config.set_dtype_policy("float64")
    model_graph = recording.record(split_models.bare(large))
    first = model_graph.nodes[0]
    values_by_key = {
        key: tf.zeros(model_graph.variables[key].shape, tf.float64) for key in first.variables
    }
    before: int = tf.config.experimental.get_memory_info("CPU:0")["current"]
    interpreter.run_nodes(
        model_graph, [first], {0: tf.zeros((1, 512), tf.float64)}, values_by_key, training=True
    )
    after: int = tf.config.experimental.get_memory_info("CPU:0")["current"]
    return after - before


def test_running_a_part_gives_no_values_to_the_rest(isolated: Callable[..., Any]) -> None:
    assert isolated(part_run) < 1 << 20


def test_a_model_without_weights_stays_so_when_keras_ends_a_scope() -> None:
    model = split_models.bare(next(iter(split_models.ALL.values())))
    with keras.StatelessScope():
        pass
    assert [weight._value for weight in model.variables] == [None] * len(model.variables)
