"""Optimizers that distinguish variables by their path, their name, an attribute or identity."""

import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, reference, split_models, split_ranks, weights
from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape

pytestmark = split_models.MARKS

BATCH, STEPS = 4, 2
STAGES, TENSOR = shape.MeshShape(stage=2), shape.MeshShape(tensor=2)


@keras.saving.register_keras_serializable("identity")
class Discriminative(keras.optimizers.SGD):
    """Gives a part of the model a tenth of the rate."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        factors = [0.1 if "backbone" in variable.path else 1.0 for variable in trainable_variables]
        scaled = [gradient * factor for gradient, factor in zip(grads, factors, strict=True)]
        super().apply(scaled, trainable_variables)


@keras.saving.register_keras_serializable("identity")
class Rated(keras.optimizers.SGD):
    """Takes the factor of a gradient from the variable."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        factors = [getattr(variable, "factor", 1.0) for variable in trainable_variables]
        scaled = [gradient * factor for gradient, factor in zip(grads, factors, strict=True)]
        super().apply(scaled, trainable_variables)


@keras.saving.register_keras_serializable("identity")
class ByPlace(keras.optimizers.SGD):
    """Halves the rate from each variable to the next one."""

    def apply(self, grads: Any, trainable_variables: Any = None) -> None:
        halved = [gradient * 0.5**index for index, gradient in enumerate(grads)]
        super().apply(halved, trainable_variables)


@keras.saving.register_keras_serializable("identity")
class Referring(keras.optimizers.SGD):
    """Refers to something by an attribute."""

    referred: Any = None


def build_model() -> Any:
    return keras.Sequential(
        [
            keras.Input((3,)),
            keras.layers.Dense(4, "tanh", bias_initializer="ones", name="backbone"),
            keras.layers.Dense(2, bias_initializer="ones", name="head"),
        ]
    )


def functions(optimizer_for: Callable[[Any], Any]) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "build_model": build_model,
        "compile_model": lambda model: model.compile(optimizer_for(model), "mse"),
        "training_data": lambda: (random.normal(size=(8, 3)), random.normal(size=(8, 2))),
    }


def excluding(model: Any) -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    variables = [model.layers[0].kernel, model.layers[-1].bias]
    optimizer.exclude_from_weight_decay(var_list=variables)
    return optimizer


def excluding_names(model: Any) -> Any:
    optimizer = keras.optimizers.LossScaleOptimizer(excluding(model), initial_scale=8.0)
    optimizer.inner_optimizer.exclude_from_weight_decay(
        var_list=[model.layers[0].kernel], var_names=["bias"]
    )
    return optimizer


def by_attribute(model: Any) -> Any:
    for variable in model.get_layer("backbone").trainable_variables:
        variable.factor = 0.1
    return Rated(0.1)


@pytest.mark.parametrize(
    ("optimizer_for", "mesh"),
    [
        (lambda _: Discriminative(0.1), STAGES),
        (by_attribute, STAGES),
        (lambda _: keras.optimizers.Muon(0.01, exclude_layers=["backbone"]), STAGES),
        (excluding, STAGES),
        (excluding, TENSOR),
        (excluding_names, STAGES),
    ],
    ids=["path", "attribute", "Muon", "variables", "variables of parts", "names"],
)
def test_an_optimizer_distinguishes_variables_as_in_one_process(
    optimizer_for: Callable[[Any], Any], mesh: shape.MeshShape
) -> None:
    model = functions(optimizer_for)
    data = model["training_data"]()
    model["training_data"] = lambda: data
    expected, _ = reference.train(types.SimpleNamespace(**model), STEPS, BATCH, cases.SEED)
    _, difference = cases_split.train_on_mesh(model, mesh, 1, BATCH, expected, STEPS)
    assert difference <= weights.TOLERANCE


def referring(value_of: Callable[[Any], Any]) -> Callable[[Any], Any]:
    def optimizer_for(model: Any) -> Any:
        optimizer = Referring(0.1)
        optimizer.referred = value_of(model)
        return optimizer

    return optimizer_for


def closed_over(model: Any) -> Any:
    slow = {id(variable) for variable in model.layers[0].trainable_variables}

    class Closed(keras.optimizers.SGD):
        def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
            factor = 0.1 if id(variable) in slow else 1.0
            super().update_step(gradient, variable, learning_rate * factor)

    return Closed(0.1)


def several(_: Any) -> Any:
    optimizers = keras.optimizers.OptimizerMap(keras.optimizers.SGD(0.1))
    optimizers[".*backbone.*"] = keras.optimizers.SGD(0.01)
    return keras.optimizers.MultiOptimizer(optimizers)


KERNEL = r"refers to sequential/backbone/kernel of the model \({}\).* by their path or name, or use"


@pytest.mark.parametrize(
    ("optimizer_for", "pattern"),
    [
        (referring(lambda model: model.trainable_variables), KERNEL.format("referred")),
        (
            referring(lambda model: {"slow": [(model.layers[0], 0.1)]}),
            r"Referring refers to the layer backbone of the model \(referred\)",
        ),
        (
            referring(lambda model: types.SimpleNamespace(slow={id(model.layers[0].kernel)})),
            KERNEL.format("referred"),
        ),
        (
            referring(lambda model: lambda variable: variable is model.layers[0].kernel),
            r"the layer sequential of the model \(referred\)",
        ),
        (closed_over, KERNEL.format("update_step")),
        (several, r"MultiOptimizer has other optimizers in it .* or use the strategy Multi"),
        (lambda _: ByPlace(0.1), r"ByPlace changes sequential/backbone/bias .* let mesh.stage be"),
        (
            lambda _: Discriminative(0.1, global_clipnorm=1.0),
            r"Discriminative has an apply of its own and global_clipnorm, .* Leave global_clipnorm",
        ),
        (
            lambda _: Discriminative(0.1, gradient_accumulation_steps=2),
            r"apply of its own and gradient_accumulation_steps",
        ),
    ],
    ids=[
        *("variables", "layers", "ids", "function", "closure", "optimizers", "place"),
        *("clipped", "accumulated"),
    ],
)
def test_an_optimizer_that_a_rank_would_mislead_is_refused(
    optimizer_for: Callable[[Any], Any], pattern: str
) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        split_ranks.prepare_new(functions(optimizer_for), STAGES, 1, batch=BATCH)


def test_a_variable_of_a_rank_has_all_attributes_of_the_model_s() -> None:
    def build() -> Any:
        model = build_model()
        layer = model.layers[0]
        layer.kernel.constraint = keras.constraints.NonNeg()
        layer.bias.regularizer = keras.regularizers.L2(0.1)
        layer.kernel.group = "slow"
        layer.bias.trainable = False
        return model

    model = functions(lambda _: keras.optimizers.SGD(0.1)) | {"build_model": build}
    replicas, _, _ = split_ranks.prepare_new(model, STAGES, 1, batch=BATCH)
    skeletons = replicas.partition.model.variables
    for rank in replicas.local:
        for key, weight in rank.weights.items():
            here, there = vars(weight), vars(skeletons[key])
            differing = [
                name
                for name in there.keys() - {"_value", "_initializer"}
                if not name.startswith("_self_") and here.get(name) != there[name]
            ]
            assert not differing
    kernel = replicas.local[0].weights["model/0/0"]
    assert (kernel.path, kernel.group) == ("sequential/backbone/kernel", "slow")
