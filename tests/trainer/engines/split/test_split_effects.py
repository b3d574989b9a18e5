"""Weights without a gradient, and weights that the forward pass assigns."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, reference, split_models, split_ranks, weights
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import operations, recording, step_effects

pytestmark = split_models.MARKS


BATCH, STEPS = 4, 3
STAGES, TENSOR = shape.MeshShape(stage=2), shape.MeshShape(tensor=2)


class Clipped(keras.layers.Dense):
    """Clips its kernel while it trains, before it uses it."""

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.kernel.assign(keras.ops.clip(self.kernel, -0.3, 0.3))
        return super().call(inputs)


class Annealed(keras.layers.Layer):
    """Counts its calls in training, and weights what it adds to the loss by that."""

    def build(self, _: Any) -> None:
        self.count = self.add_weight(shape=(), initializer="zeros", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        if training:
            self.count.assign(self.count + 1.0)
            self.add_loss(0.1 * self.count * keras.ops.mean(keras.ops.square(inputs)))
        return inputs


class Codebook(keras.layers.Layer):
    """Follows its batch for what later steps use."""

    def build(self, dims: Any) -> None:
        self.book = self.add_weight(shape=(dims[-1],), name="book", trainable=False)
        self.second = self.add_weight(shape=(dims[-1],), name="second", trainable=False)

    def call(self, inputs: Any, training: bool = False) -> Any:
        result = inputs - keras.ops.stop_gradient(self.second)
        if training:
            self.second.assign(self.second * 0.5 + self.book)
            self.book.assign(0.9 * self.book + 0.1 * keras.ops.mean(inputs, axis=0))
        return result


class Stopped(keras.layers.Dense):
    """Gives what has no gradient."""

    def call(self, inputs: Any) -> Any:
        return keras.ops.stop_gradient(super().call(inputs))


def data() -> Any:
    random = np.random.default_rng(0)
    return random.normal(size=(12, 3)), random.normal(size=(12, 2))


def functions(
    build: Callable[[], Any], optimizer: Callable[[], Any], loss: Any = "mse"
) -> dict[str, Any]:
    def training_data() -> Any:
        x, y = data()
        return x, {"a": y, "b": y} if isinstance(loss, dict) else y

    return {
        "build_model": build,
        "compile_model": lambda model: model.compile(optimizer(), loss),
        "training_data": training_data,
    }


def difference(model: dict[str, Any], mesh: shape.MeshShape, microbatches: int) -> float:
    expected, _ = reference.train(types.SimpleNamespace(**model), STEPS, BATCH, cases.SEED)
    _, largest = cases_split.train_on_mesh(model, mesh, microbatches, BATCH, expected, STEPS)
    return largest


def sequential(*layers: Any) -> Any:
    return keras.Sequential([keras.Input((3,)), *layers])


def adamw() -> Any:
    return keras.optimizers.AdamW(0.05, weight_decay=0.3, global_clipnorm=0.1)


def without_loss() -> Any:
    """The output b has no loss; its branch begins in the first stage, and reads a layer of both."""
    inputs = keras.Input((3,))
    both = keras.layers.Dense(3, "tanh", bias_initializer="ones", name="both")
    branch = keras.layers.Dense(4, "tanh", bias_initializer="ones", name="branch")(both(inputs))
    trunk = keras.layers.Dense(8, "tanh", name="trunk")(inputs)
    a = keras.layers.Dense(2, name="a")(keras.layers.Dense(8, "tanh")(trunk))
    b = keras.layers.Dense(2, bias_initializer="ones", name="b")(
        both(keras.layers.Dense(3)(branch))
    )
    return keras.Model(inputs, {"a": a, "b": b})


def without_gradient() -> Any:
    """A layer of the second stage lets no gradient through."""
    inputs = keras.Input((3,))
    x = inputs
    for _ in range(4):
        x = keras.layers.Dense(30, "tanh", bias_initializer="ones")(x)
    x = Stopped(30, "tanh", bias_initializer="ones", name="stopped")(x)
    return keras.Model(inputs, keras.layers.Dense(2)(x))


def test_the_layer_without_a_gradient_is_one_of_the_second_stage() -> None:
    replicas, _, _ = split_ranks.prepare_new(functions(without_gradient, adamw), STAGES, 1)
    names = [node.name for node in replicas.partition.stages[1].nodes]
    assert "stopped" in names


@pytest.mark.parametrize("mesh", [STAGES, TENSOR], ids=["stages", "tensor"])
@pytest.mark.parametrize(
    ("build", "loss"),
    [(without_loss, {"a": "mse"}), (without_gradient, "mse")],
    ids=["loss", "gradient"],
)
@pytest.mark.filterwarnings("ignore:Gradients do not exist:UserWarning")
def test_a_weight_without_a_gradient_does_not_decay(
    build: Callable[[], Any], loss: Any, mesh: shape.MeshShape
) -> None:
    microbatches = 2 if mesh is STAGES else 1
    assert difference(functions(build, adamw, loss), mesh, microbatches) <= weights.TOLERANCE


@keras.saving.register_keras_serializable("effects")
def conditional(y_true: Any, y_pred: Any) -> Any:
    """Errors of batches that have a positive, which the first example is not."""
    return keras.ops.cond(
        keras.ops.any(y_true > 1.0),
        lambda: keras.ops.mean(keras.ops.square(y_true - y_pred), axis=-1),
        lambda: keras.ops.zeros(keras.ops.shape(y_pred)[:1], "float64"),
    )


def test_a_loss_whose_condition_the_first_example_does_not_meet_trains() -> None:
    model = functions(
        lambda: sequential(keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)),
        lambda: keras.optimizers.SGD(0.1),
        conditional,
    )
    replicas, _, _ = split_ranks.prepare_new(model, STAGES, 1, batch=BATCH)
    assert not replicas.partition.effects.constant_weights
    assert not data()[1][0].max() > 1.0


@pytest.mark.parametrize("mesh", [STAGES, TENSOR], ids=["stages", "tensor"])
@pytest.mark.parametrize(
    "layers",
    [
        lambda: [Clipped(4, "tanh", kernel_regularizer="l2")],
        lambda: [
            keras.layers.SpectralNormalization(
                keras.layers.Dense(4, "tanh", kernel_regularizer="l2")
            )
        ],
        lambda: [keras.layers.Dense(4), Annealed()],
        lambda: [layer := Clipped(3, "tanh"), layer],
    ],
    ids=["clipped", "spectral", "counted", "called twice"],
)
def test_what_no_example_decides_is_assigned_once_a_step(
    layers: Callable[[], list[Any]], mesh: shape.MeshShape
) -> None:
    model = functions(
        lambda: sequential(*layers(), keras.layers.Dense(4, "tanh"), keras.layers.Dense(2)),
        lambda: keras.optimizers.SGD(0.1),
    )
    assert difference(model, mesh, 2) <= weights.TOLERANCE


def prepare(build: Callable[[], Any], mesh: shape.MeshShape, batch: int = BATCH) -> Any:
    model = functions(build, lambda: keras.optimizers.SGD(0.1))
    return split_ranks.prepare_new(model, mesh, 1, batch=batch)


def test_what_examples_decide_is_refused_where_they_are_divided() -> None:
    def build() -> Any:
        return sequential(keras.layers.Dense(4), Codebook(), keras.layers.Dense(2))

    with pytest.raises(errors.UserCodeError, match=r"codebook assigns .*codebook/(book|second) by"):
        prepare(build, shape.MeshShape(data=2))
    assert difference(functions(build, adamw), STAGES, 1) <= weights.TOLERANCE


def test_what_two_stages_would_assign_is_refused() -> None:
    def build() -> Any:
        layer = Clipped(3, name="clipped")
        inner = [keras.layers.Dense(30), keras.layers.Dense(30), keras.layers.Dense(3)]
        return sequential(layer, *inner, layer, keras.layers.Dense(2))

    with pytest.raises(errors.UserCodeError, match=r"clipped/kernel is assigned by a layer that"):
        prepare(build, STAGES)


def test_a_batch_that_a_rank_has_no_example_of_is_refused() -> None:
    def build() -> Any:
        return sequential(Clipped(4, name="clipped"), keras.layers.Dense(2))

    _, _, step = prepare(build, shape.MeshShape(data=2))
    step.check_size(2)
    with pytest.raises(errors.UserCodeError, match=r"1 examples, fewer than the 2 .* clipped ass"):
        step.check_size(1)


def test_a_gradient_that_is_a_value_is_refused() -> None:
    class EightBitScale(keras.layers.Layer):
        def build(self, dims: Any) -> None:
            self.scale = self.add_weight(
                shape=(dims[-1],), name="scale", overwrite_with_gradient=True
            )

        def call(self, inputs: Any) -> Any:
            return inputs * self.scale

    with pytest.raises(errors.UserCodeError, match=r"scaled trains with 8-bit floats: .*/scale "):
        prepare(lambda: sequential(EightBitScale(name="scaled"), keras.layers.Dense(2)), STAGES)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "Activation": {"activation": "tanh"},
    "AveragePooling1D": {"pool_size": 2},
    "AveragePooling2D": {"pool_size": 2},
    "AveragePooling3D": {"pool_size": 2},
    "Dense": {"units": 2, "activation": "relu"},
    "EinsumDense": {"equation": "ab,bc->ac", "output_shape": 2},
    "Permute": {"dims": (1,)},
    "RepeatVector": {"n": 2},
    "Reshape": {"target_shape": (-1,)},
}
MERGING = ["Add", "Average", "Concatenate", "Dot", "Maximum", "Minimum", "Multiply", "Subtract"]


def example(kind: type) -> Any:
    """A layer of a class on what it takes."""
    name = kind.__name__
    dimensions = next((int(digit) for digit in "123" if f"{digit}D" in name), 0)
    image = dimensions and name != "SpatialDropout1D"
    dims = (*[4] * dimensions, 4) if image else (3, 4) if dimensions else (4,)
    arguments = dict(ARGUMENTS.get(name, {}))
    if "Conv" in name:
        arguments |= {"kernel_size": 2}
        arguments |= {} if "Depthwise" in name else {"filters": 2}
    if "Dropout" in name or name == "GaussianNoise":
        arguments |= {"stddev" if name == "GaussianNoise" else "rate": 0.5}
    if name == "GroupNormalization":
        arguments |= {"groups": 2}
    inputs = [keras.Input(dims), keras.Input(dims)]
    if name in MERGING:
        layer = kind(axes=1) if name == "Dot" else kind()
        return keras.Model(inputs, layer(inputs))
    return keras.Model(inputs[0], kind(**arguments)(inputs[0]))


@pytest.mark.parametrize("kind", step_effects.SIMPLE, ids=lambda layer_type: layer_type.__name__)
def test_a_layer_that_is_not_traced_does_what_a_trace_shows(kind: type) -> None:
    model = recording.record(example(kind))
    node = next(candidate for candidate in model.nodes if type(candidate.calls) is kind)
    effects = step_effects.known(model, node)
    assert effects == step_effects.traced(model, node)
    assert effects is not None
    assert node.outputs[0] in effects.sources


@pytest.mark.parametrize("name", sorted(step_effects.ACTIVATIONS))
def test_an_activation_that_is_not_traced_has_a_gradient(name: str) -> None:
    names = {
        operations.name_of(function): function for function in vars(keras.activations).values()
    }
    inputs = keras.Input((3,))
    model = recording.record(keras.Model(inputs, keras.layers.Dense(2, names[name])(inputs)))
    (node,) = model.nodes
    assert step_effects.known(model, node) == step_effects.traced(model, node)


def test_a_layer_without_a_gradient_is_traced() -> None:
    inputs = keras.Input((3,))
    layer = keras.layers.Dense(2, lambda tensor: keras.ops.round(tensor))
    model = recording.record(keras.Model(inputs, layer(inputs)))
    assert step_effects.known(model, model.nodes[0]) is None
    (output,) = model.output_tensors()
    effects = step_effects.find_effects(model, [output], is_divided=True)
    assert effects.constant_weights == {"model/1/0", "model/1/1"}
    assert effects.constant_tensors == {0}
