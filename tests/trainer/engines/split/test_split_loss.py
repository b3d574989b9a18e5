"""Ranks that shard the outputs of a model divide the examples of the loss and the metrics."""

import types
from collections.abc import Callable
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from testing.trainer import cases, cases_split, reference, split_models, split_ranks, weights
from tfparallel_trainer.comms import shape
from tfparallel_trainer.comms.shape import Axis
from tfparallel_trainer.engines.split.execution import pipeline_steps

pytestmark = split_models.MARKS

LAYERS = keras.layers
BATCH, STEPS, EXAMPLES = 6, 3, 17
"""The last batch of an epoch has five examples."""

WORDS, LENGTH = 6, 4


class LossCase(NamedTuple):
    """A model whose outputs are sharded, and what it is trained with."""

    build: Callable[[], Any]
    loss: Callable[[], Any]
    """Makes the loss, as `compile` takes it."""
    data: Callable[[Any], Any]
    """Draws a data set from a generator."""
    metrics: Any = None
    weighted_metrics: Any = None

    def functions(self) -> dict[str, Any]:
        """Those of a user's module."""

        def compile_model(model: Any) -> None:
            model.compile(
                keras.optimizers.SGD(0.1, momentum=0.9),
                self.loss(),
                metrics=self.metrics,
                weighted_metrics=self.weighted_metrics,
            )

        outputs = [layer.name for layer in self.build().layers if layer.name.startswith("out")]
        return {
            "build_model": self.build,
            "compile_model": compile_model,
            "training_data": lambda: self.data(np.random.default_rng(3)),
            "layer_shardings": lambda: dict.fromkeys(outputs, "column"),
        }


def cross_entropy(**options: Any) -> Callable[[], Any]:
    return lambda: keras.losses.SparseCategoricalCrossentropy(from_logits=True, **options)


def decoder(*, mask_zero: bool = False) -> Any:
    tokens = keras.Input((LENGTH,), dtype="int64")
    rows = LAYERS.Embedding(WORDS, 4, mask_zero=mask_zero)(tokens)
    rows = LAYERS.Dense(4, "tanh", activity_regularizer="l2", kernel_regularizer="l2")(rows)
    return keras.Model(tokens, LAYERS.Dense(WORDS, name="out")(rows))


def text(random: Any) -> Any:
    drawn = random.integers(0, WORDS, (2, EXAMPLES, LENGTH))
    return drawn[0], drawn[1]


def weighted_text(random: Any) -> Any:
    return *text(random), random.uniform(0.5, 2.0, (EXAMPLES, LENGTH))


def two_outputs() -> Any:
    first = keras.Input((3,))
    hidden = LAYERS.Dense(4, "tanh")(first)
    kind = LAYERS.Dense(4, name="out_kind")(hidden)
    size = LAYERS.Dense(2, "sigmoid", name="out_size")(hidden)
    return keras.Model(first, {"out_kind": kind, "out_size": size})


def two_labels(random: Any) -> Any:
    labels = {
        "out_kind": random.choice([0, 0, 1, 2, 3], size=EXAMPLES),
        "out_size": random.integers(0, 2, (EXAMPLES, 2)).astype("float64"),
    }
    return random.normal(size=(EXAMPLES, 3)), labels


LOSS_CASES = {
    "decoder": LossCase(decoder, cross_entropy(), text, ["accuracy"]),
    "weights": LossCase(
        decoder, cross_entropy(), weighted_text, weighted_metrics=["sparse_categorical_accuracy"]
    ),
    "sum": LossCase(decoder, cross_entropy(reduction="sum"), text),
    "mask": LossCase(lambda: decoder(mask_zero=True), cross_entropy(), text, ["accuracy"]),
    "one loss that masks": LossCase(
        lambda: keras.Sequential([keras.Input((3,)), LAYERS.Dense(4, name="out_kind")]),
        cross_entropy(ignore_class=0),
        lambda random: (random.normal(size=(EXAMPLES, 3)), two_labels(random)[1]["out_kind"]),
    ),
    "two outputs": LossCase(
        two_outputs,
        lambda: {"out_kind": cross_entropy(ignore_class=0)(), "out_size": "binary_crossentropy"},
        two_labels,
        {"out_kind": ["accuracy"], "out_size": ["auc"]},
    ),
}


def differences(
    functions: dict[str, Any], mesh: shape.MeshShape, microbatches: int, batch: int = BATCH
) -> tuple[float, float]:
    """The largest differences of losses and weights from those of a plain loop."""
    expected, losses_of_one = reference.train(
        types.SimpleNamespace(**functions), STEPS, batch, cases.SEED
    )
    losses, difference = cases_split.train_on_mesh(
        functions, mesh, microbatches, batch, expected, STEPS
    )
    return float(np.max(np.abs(np.subtract(losses, losses_of_one)))), difference


@pytest.mark.parametrize(
    ("name", "mesh", "microbatches"),
    [
        ("decoder", shape.MeshShape(tensor=2), 1),
        ("decoder", shape.MeshShape(stage=2, tensor=2), 3),
        ("decoder", shape.MeshShape(data=2, tensor=2), 2),
        ("weights", shape.MeshShape(tensor=3), 2),
        ("sum", shape.MeshShape(tensor=2), 2),
        ("mask", shape.MeshShape(tensor=2), 2),
        ("one loss that masks", shape.MeshShape(data=2, tensor=2), 1),
        ("two outputs", shape.MeshShape(tensor=2), 2),
        ("two outputs", shape.MeshShape(data=2, tensor=2), 1),
    ],
)
def test_a_divided_loss_equals_that_of_a_plain_loop(
    name: str, mesh: shape.MeshShape, microbatches: int
) -> None:
    functions = LOSS_CASES[name].functions()
    replicas, _, _ = split_ranks.prepare_new(functions, mesh, microbatches, batch=BATCH)
    assert {rank.loss_axis for rank in replicas.local} == {Axis.TENSOR}
    loss, difference = differences(functions, mesh, microbatches)
    assert loss <= 1e-10
    assert difference <= weights.TOLERANCE


def test_images_that_are_cut_in_rows_are_exchanged_for_whole_ones() -> None:
    def images(random: Any) -> Any:
        return random.normal(size=(EXAMPLES, 4, 3, 2)), random.normal(size=(EXAMPLES, 4, 3, 1))

    model = LossCase(
        lambda: keras.Sequential(
            [
                keras.Input((4, 3, 2)),
                LAYERS.Conv2D(3, 3, padding="same", activation="tanh"),
                LAYERS.Conv2D(1, 3, padding="same"),
            ]
        ),
        lambda: "mse",
        images,
    )
    functions, mesh = model.functions(), shape.MeshShape(spatial=2)
    replicas, _, _ = split_ranks.prepare_new(functions, mesh, 1)
    assert {rank.loss_axis for rank in replicas.local} == {Axis.SPATIAL}
    assert max(differences(functions, mesh, 1)) <= 1e-10


def test_fewer_examples_than_ranks_are_counted_once() -> None:
    functions, mesh = LOSS_CASES["decoder"].functions(), shape.MeshShape(tensor=2)
    replicas, _, _ = split_ranks.prepare_new(functions, mesh, BATCH, batch=BATCH)
    assert {rank.loss_cut(1) for rank in replicas.local} == {None}
    assert max(differences(functions, mesh, BATCH)) <= 1e-10


@pytest.mark.parametrize("name", ["decoder", "weights", "mask", "two outputs"])
def test_metrics_are_those_of_one_process(name: str) -> None:
    functions = LOSS_CASES[name].functions()
    mesh = shape.MeshShape(data=2, tensor=2)
    # 5 of 17 examples in three microbatches: some have one example, which no rank divides.
    replicas, examples, step = split_ranks.prepare_new(functions, mesh, 2, batch=7)
    module = types.SimpleNamespace(**functions)
    keras.utils.set_random_seed(cases.SEED)
    model = module.build_model()
    module.compile_model(model)
    x, y, weight = next(reference.batches(module, 7, cases.SEED, 0, None))
    model.compute_metrics(x, y, model(x), weight)
    expected = {
        name: float(value) for name, value in model.get_metrics_result().items() if name != "loss"
    }
    step(0, next(iter(examples.epoch(0, 0))), frozenset())
    assert expected
    assert replicas.metrics() == pytest.approx(expected, rel=1e-6)


def test_an_evaluation_counts_each_example_once() -> None:
    functions = LOSS_CASES["two outputs"].functions()
    module = types.SimpleNamespace(**functions)
    keras.utils.set_random_seed(cases.SEED)
    model = module.build_model()
    module.compile_model(model)
    batch = next(reference.batches(module, BATCH, cases.SEED, 0, None))
    loss = float(model.compute_loss(batch[0], batch[1], model(batch[0])))
    replicas, examples, step = split_ranks.prepare_new(
        functions, shape.MeshShape(stage=2, tensor=2), 2, batch=BATCH
    )
    evaluator = pipeline_steps.PipelineEvaluator(step.module, replicas, examples.spec)
    sums = evaluator.sums(next(iter(examples.epoch(0, 0))))
    assert evaluator.results(sums)["loss"] == pytest.approx(loss, rel=1e-10)


def own_loss(y: Any, y_pred: Any) -> Any:
    return keras.losses.sparse_categorical_crossentropy(y, y_pred, from_logits=True)


def own_metric(y: Any, y_pred: Any) -> Any:
    return keras.metrics.sparse_categorical_accuracy(y, y_pred)


def replicated_output() -> Any:
    tokens = keras.Input((LENGTH,), dtype="int64")
    rows = LAYERS.Dense(4, name="out")(LAYERS.Embedding(WORDS, 4)(tokens))
    return keras.Model(tokens, LAYERS.Softmax()(rows))


@pytest.mark.parametrize(
    "model",
    [
        LossCase(decoder, lambda: own_loss, text),
        LossCase(decoder, cross_entropy(), text, [own_metric]),
        LossCase(replicated_output, lambda: "sparse_categorical_crossentropy", text),
    ],
    ids=["own loss", "own metric", "whole output"],
)
def test_each_rank_computes_what_may_not_be_divided(model: LossCase) -> None:
    replicas, _, _ = split_ranks.prepare_new(model.functions(), shape.MeshShape(tensor=2), 1)
    assert {rank.loss_axis for rank in replicas.local} == {None}
