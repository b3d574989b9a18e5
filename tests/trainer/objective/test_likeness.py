"""What differs between the models of two processes, besides variables, shows and has a name."""

import pathlib
import time
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from testing.trainer import ranks
from tfparallel_trainer.objective import likeness, tracing

WORDS = ["red", "green", "blue"]
X = np.array(WORDS)[:, None]
Y = np.zeros((3, 2), "float32")
SPEC = (tf.TensorSpec((None, 1), tf.string), tf.TensorSpec((None, 2), tf.float32), None)


@keras.saving.register_keras_serializable("likeness")
class DrawnShift(keras.layers.Layer):
    """Adds numbers that it has drawn, which its configuration does not say."""

    def __init__(self, shift: Any, **more: Any) -> None:
        super().__init__(**more)
        self.shift = shift

    def call(self, x: Any) -> Any:
        return x + self.shift


def describe(
    vocabulary: Any = WORDS,
    *,
    adapted: Any = WORDS,
    rate: float = 0.5,
    shift: Any = 0.0,
    is_tensor: bool = False,
    scale: Any = 1.0,
    depth: int = 1,
    closes_over: bool = False,
) -> likeness.Digests:
    """Describe a model that is built now, with whatever its process makes of the arguments."""

    closure = tf.Variable(1.0, trainable=False)

    def loss(y: Any, y_pred: Any) -> Any:
        factor = closure if closes_over else scale
        return keras.ops.mean(keras.ops.square(y - y_pred) * factor, axis=-1)

    def build() -> Any:
        first = keras.Input((1,), dtype="string")
        texts = keras.layers.TextVectorization(output_sequence_length=1, name="texts")
        texts.adapt(list(adapted))
        lookup = keras.layers.StringLookup(vocabulary=list(vocabulary), name="lookup")
        x = keras.layers.Embedding(9, 4)(keras.ops.add(lookup(first), texts(first)))
        x = keras.layers.Dropout(rate, name="dropout")(keras.layers.Flatten()(x))
        x = keras.layers.Lambda(lambda tensor: tensor * 2.0, name="doubled")(x)
        x = DrawnShift(tf.constant(0.5) if is_tensor else shift, name="shifted")(x)
        for _ in range(depth):
            x = keras.ops.tanh(x)
        return keras.Model(first, keras.layers.Dense(2)(x))

    module = ranks.module(build, lambda model: model.compile("adam", loss))
    (member,) = ranks.build_apart(module, (X, Y, None), 1)
    traced = likeness.describe_trace(member.model, tracing.trace(member, SPEC))
    return {**likeness.describe(member.model), **traced}


@pytest.fixture(scope="module")
def digests() -> likeness.Digests:
    keras.utils.set_random_seed(1)
    return describe()


def test_models_that_are_built_alike_are_alike(digests: likeness.Digests) -> None:
    """Whatever their weights, and the seeds of what is random."""
    keras.utils.set_random_seed(2)
    assert describe() == digests


@pytest.mark.parametrize(
    ("change", "prefix"),
    [
        ({"vocabulary": WORDS[::-1]}, "the layer lookup (StringLookup)"),
        ({"adapted": ["green", "red"]}, "the layer texts (TextVectorization)"),
        ({"rate": 0.25}, "the layer dropout (Dropout)"),
        ({"shift": 0.5}, "the layer shifted (DrawnShift)"),
        ({"shift": np.float32(0.5)}, "the layer shifted (DrawnShift)"),
        ({"is_tensor": True}, "the layer shifted (DrawnShift)"),
        ({"scale": 2.0}, "the loss"),
        ({"depth": 2}, "the loss, the metrics or the operations of a step"),
        ({"closes_over": True}, "the loss"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_differs_has_a_name(
    change: dict[str, Any], prefix: str, digests: likeness.Digests
) -> None:
    other = describe(**change)
    differing = [what for what in digests if other.get(what) != digests[what]]
    assert any(what.startswith(prefix) for what in differing), differing


class Branches(keras.layers.Layer):
    """Conditions, which TensorFlow keeps as functions of random names."""

    def call(self, x: Any) -> Any:
        for number in range(6):
            larger = keras.ops.sum(x) > number
            x = tf.cond(larger, lambda x=x, n=number: x + n, lambda x=x, n=number: x - n)
        return x


def test_names_of_the_functions_of_a_graph_do_not_count() -> None:
    module = ranks.module(
        lambda: keras.Sequential([keras.Input((2,)), Branches(name="branches")]),
        lambda model: model.compile("sgd", "mse"),
    )
    x = np.ones((3, 2), "float32")
    (member,) = ranks.build_apart(module, (x, x, None), 1)
    spec = (*[tf.TensorSpec((None, 2), tf.float32)] * 2, None)
    constants = [tracing.trace(member, spec).constants for _ in range(3)]
    assert constants[1:] == constants[:-1]


@keras.saving.register_keras_serializable("likeness")
class ChosenAxes(keras.constraints.Constraint):
    """Has a set in its configuration, which is in the order of its making."""

    def __init__(self, axes: Any) -> None:
        self.axes = axes

    def __call__(self, w: Any) -> Any:
        return w

    def get_config(self) -> dict[str, Any]:
        return {"axes": self.axes}


@keras.saving.register_keras_serializable("likeness")
class Noted(keras.layers.Layer):
    """Notes what only its process has, and adds its parts in the order of a set."""

    def __init__(self, process: int, folder: pathlib.Path, **more: Any) -> None:
        super().__init__(**more)
        self.axes = {0, 8} if process else {8, 0}  # iterates in the order of its making
        self.description = f"process {process} at {time.monotonic_ns()}"
        self.file = folder / "scale.txt"
        self.file.write_text("2.5")
        self.doubled = tf.function(lambda tensor: tensor * 2.0, autograph=False)

    def build(self, shape: Any) -> None:
        self.scale = self.add_weight(shape=(), constraint=ChosenAxes(self.axes))

    def call(self, x: Any) -> Any:
        tf.debugging.assert_all_finite(x, f"{self.name} is not finite")
        tf.debugging.assert_non_negative(tf.abs(x), "is negative")
        tf.print("seen by", self.name, summarize=1)
        parts = {0: lambda: tf.abs(x) + 1.0, 8: lambda: tf.tanh(x) * 3.0}
        total = sum(parts[axis]() for axis in self.axes)
        total *= tf.strings.to_number(tf.io.read_file(str(self.file)))
        larger = tf.reduce_sum(total) > 1.0
        return tf.cond(larger, lambda: self.doubled(total), lambda: total + 4.0) * self.scale

    def get_config(self) -> dict[str, Any]:
        noted = {"made": self.description, "axes": self.axes, "file": str(self.file)}
        return {**super().get_config(), **noted}


def build_in(process: int, folder: pathlib.Path, vocabulary: Any = WORDS) -> likeness.Digests:
    """Describe a model as a process does that has built others before, in its own folder."""
    folder.mkdir()
    vocabulary_file = folder / "words.txt"
    vocabulary_file.write_text("\n".join(vocabulary))

    def build() -> Any:
        for _ in range(11 * process):  # names that Keras counts go on from there
            keras.layers.Dense(1), keras.layers.LSTM(1), keras.Variable(0.0)
        first = keras.Input((1,), dtype="string")
        lookup = keras.layers.StringLookup(vocabulary=str(vocabulary_file))(first)
        x = keras.layers.Flatten()(keras.layers.Embedding(9, 4)(lookup))
        shared = keras.layers.Dense(4, "tanh")
        x = keras.layers.Dropout(0.5)(shared(shared(x)))
        x = Noted(process, folder)(keras.layers.LSTM(4)(x[:, None]))
        x = keras.layers.LSTM(4, kernel_initializer="zeros")(x[:, None])
        return keras.Model(first, keras.layers.Dense(2)(x))

    def compile_model(model: Any) -> None:
        factor = keras.Variable(1.0, trainable=False)
        generator = tf.random.Generator.from_non_deterministic_state()

        def loss(y: Any, y_pred: Any) -> Any:
            noise = generator.normal(tf.shape(y)) * 0.0
            return keras.ops.mean(keras.ops.square(y - y_pred + noise) * factor, axis=-1)

        model.compile("adam", loss)

    (member,) = ranks.build_apart(ranks.module(build, compile_model), (X, Y, None), 1)
    trace = tracing.trace(member, SPEC)
    assert [closure.shape for closure in trace.closures] == [()], "a generator is none"
    return {**likeness.describe(member.model), **likeness.describe_trace(member.model, trace)}


@pytest.mark.filterwarnings("ignore:.*constraint.*")
def test_what_legitimately_differs_between_processes_does_not_count(
    tmp_path: pathlib.Path,
) -> None:
    """Counted names, orders of sets, folders of files, times, addresses, and names in messages."""
    first = build_in(0, tmp_path / "first")
    second = build_in(1, tmp_path / "second")
    pairs = zip(first.items(), second.values(), strict=True)
    assert [what for (what, here), there in pairs if here != there] == []
    other = build_in(2, tmp_path / "other", WORDS[::-1])
    pairs = zip(first.items(), other.values(), strict=True)
    differing = [what for (what, here), there in pairs if here != there]
    assert differing == ["the layer string_lookup (StringLookup)"]
