"""Labels and sample weights of a wrong shape are refused by names and shapes, as Keras fails."""

import itertools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tfparallel_trainer import errors
from tfparallel_trainer.objective import label_shapes, loss, phases

LOSSES = (
    *("BinaryCrossentropy", "BinaryFocalCrossentropy", "CategoricalCrossentropy"),
    *("CategoricalFocalCrossentropy", "CategoricalHinge", "CosineSimilarity", "Hinge", "Huber"),
    *("KLDivergence", "LogCosh", "MeanAbsoluteError", "MeanAbsolutePercentageError"),
    *("MeanSquaredError", "MeanSquaredLogarithmicError", "Poisson", "SquaredHinge"),
    "SparseCategoricalCrossentropy",
)
LABELS: tuple[tuple[int, ...], ...] = ((), (1,), (2,), (4,), (2, 1), (2, 4), (4, 1))
OUTPUTS: tuple[tuple[int, ...], ...] = ((4,), (2, 4), (2, 3))
COUNT = 5
"""Examples: no other axis is as long, so that nothing fits by chance."""


def compiled(compiled_loss: Any) -> Any:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4, name="scores")])
    model.compile("sgd", compiled_loss)
    return model


def build(compiled_loss: Any, y: Any, weight: Any = None) -> None:
    phases.build(compiled(compiled_loss), (tf.zeros((1, 3)), y, weight))


@pytest.mark.parametrize("name", LOSSES)
def test_what_is_refused_is_what_keras_does_not_compute(name: str) -> None:
    keras_loss = getattr(keras.losses, name)()
    terms = loss.terms(compiled(keras_loss), ("output",))
    for labels, outputs in itertools.product(LABELS, OUTPUTS):
        y, y_pred = tf.zeros((COUNT, *labels)), tf.fill((COUNT, *outputs), 0.5)
        try:
            keras_loss(y, y_pred)
            fails = False
        except (ValueError, tf.errors.InvalidArgumentError):
            fails = True
        try:
            loss.check_shapes(terms, ("output",), y, y_pred)
            refused = ""
        except errors.UserCodeError as error:
            refused = str(error)
        assert bool(refused) == fails, (labels, outputs, refused)
        assert not fails or f"{labels} for each example, and the model gives {outputs}" in refused


METRICS = (
    *("Accuracy", "BinaryAccuracy", "BinaryCrossentropy", "CategoricalCrossentropy"),
    *("CategoricalHinge", "CosineSimilarity", "Hinge", "KLDivergence", "LogCoshError"),
    *("MeanAbsoluteError", "MeanAbsolutePercentageError", "MeanSquaredError"),
    *("MeanSquaredLogarithmicError", "Poisson", "RootMeanSquaredError"),
    *("SparseCategoricalCrossentropy", "SquaredHinge", "TopKCategoricalAccuracy"),
)


@pytest.mark.parametrize("name", METRICS)
def test_what_is_refused_is_what_a_metric_of_keras_does_not_compute(name: str) -> None:
    for labels, outputs in itertools.product(LABELS, OUTPUTS):
        y, y_pred = tf.zeros((COUNT, *labels)), tf.fill((COUNT, *outputs), 0.5)
        try:
            getattr(keras.metrics, name)().update_state(y, y_pred)
            fails = False
        except (ValueError, tf.errors.InvalidArgumentError):
            fails = True
        try:
            label_shapes.check_labels("It", name.lower(), y, y_pred, is_metric=True)
            refused = ""
        except errors.UserCodeError as error:
            refused = str(error)
        assert bool(refused) == fails, (labels, outputs, refused)


CLASSES = tf.constant([2])
ONE_HOT = tf.constant([[0.0, 0.0, 1.0, 0.0]])


@pytest.mark.parametrize(
    ("compiled_loss", "y", "sentence"),
    [
        (
            keras.losses.CategoricalCrossentropy(),
            CLASSES,
            r"^The loss CategoricalCrossentropy gets labels \(y\) of the shape \(\) for each "
            r"example, and the model gives \(4,\)\. For integer labels use Sparse",
        ),
        ("categorical_crossentropy", CLASSES[:, tf.newaxis], r"\(1,\) for .* use SparseCateg"),
        ("mse", CLASSES, r"The loss mean_squared_error gets .* use SparseCategoricalCross"),
        ("mae", tf.constant([1.5]), r"Give labels of the shape \(4,\), or let the last layer give"),
        (
            keras.losses.SparseCategoricalCrossentropy(),
            ONE_HOT,
            r"\(4,\) for each example.* For one-hot labels use CategoricalCrossentropy\.$",
        ),
        ("binary_crossentropy", tf.ones((1, 3)), r"Give labels of the shape \(4,\)"),
    ],
)
def test_the_sentence_names_loss_shapes_and_remedy(
    compiled_loss: Any, y: Any, sentence: str
) -> None:
    with pytest.raises(errors.UserCodeError, match=sentence) as caught:
        build(compiled_loss, y)
    assert caught.value.function == "compile_model"
    assert "{{" not in str(caught.value)


@pytest.mark.parametrize(
    ("metric", "y", "sentence"),
    [
        ("mae", CLASSES, r"^The metric mae of .* use SparseCategoricalAccuracy\.$"),
        (keras.losses.mean_squared_error, tf.constant([1.5]), r"mean_squared_error .*\(4,\), or "),
        (
            keras.metrics.CategoricalAccuracy(),  # it takes the largest label of the batch
            CLASSES,
            r"The metric categorical_accuracy .* For integer labels use SparseCategoricalAccur",
        ),
        ("sparse_categorical_accuracy", ONE_HOT, r"For one-hot labels use CategoricalAccuracy\.$"),
    ],
)
@pytest.mark.parametrize("kind", ["metrics", "weighted_metrics"])
def test_a_metric_that_compares_examples_with_others_is_refused(
    metric: Any, y: Any, sentence: str, kind: str
) -> None:
    """Keras computes some of it by chance, for as many examples as classes."""
    scores = compiled("mse")
    model = keras.Model(scores.inputs, [*scores.outputs, keras.layers.Dense(1)(scores.inputs[0])])
    model.compile("sgd", [None, "mse"], **{kind: [[metric], []]})
    with pytest.raises(errors.UserCodeError, match=sentence) as caught:
        phases.build(model, (tf.zeros((1, 3)), [y, tf.zeros((1, 1))], None))
    assert "of the output 'scores'" in str(caught.value)
    assert caught.value.function == "compile_model"


@pytest.mark.parametrize("metric", ["accuracy", "mae", keras.metrics.RootMeanSquaredError()])
def test_metrics_of_fitting_labels_are_built_once(metric: Any) -> None:
    model = compiled("mse")
    model.compile(
        "sgd", "mse", metrics=[metric], weighted_metrics=[keras.metrics.MeanSquaredError()]
    )
    phases.build(model, (tf.zeros((1, 3)), ONE_HOT, None))
    compiled_metrics = [
        inner_metric for metric in model.metrics for inner_metric in getattr(metric, "metrics", ())
    ]
    assert len(compiled_metrics) == 2


def test_another_loss_of_keras_is_named_when_it_fails() -> None:
    terms = loss.terms(compiled(keras.losses.CTC()), ("output",))
    with pytest.raises(errors.UserCodeError, match=r"^The loss CTC does not take labels \(y\) of"):
        loss.fractions(terms, ("output",), tf.zeros((2,)), tf.zeros((2, 4)), None)


@pytest.mark.parametrize("shape", [(2,), (2, 1)])
def test_a_weight_for_each_example_may_have_an_axis_of_one(shape: tuple[int, ...]) -> None:
    y, y_pred = tf.zeros((2, 4)), tf.constant(np.arange(8.0).reshape(2, 4), tf.float32)
    weights = np.array([0.5, 3.0], "float32").reshape(shape)
    for compiled_loss in ("mse", keras.losses.MeanSquaredError()):
        [fraction] = loss.fractions(
            loss.terms(compiled(compiled_loss), ("output",)), ("output",), y, y_pred, weights
        )
        expected = keras.losses.MeanSquaredError()(y, y_pred, weights)
        assert float(fraction.numerator) / float(fraction.denominator) == pytest.approx(
            float(expected), rel=1e-6
        )


@pytest.mark.parametrize(
    ("shape", "outputs", "sentence"),
    [
        ((2, 4), (2, 4), r"sample weights of the shape \(4,\) for .* shape \(\)\. .* example\.$"),
        ((2, 3), (2, 5, 4), r"\(3,\) for .* of the shape \(5,\)\. .* or one for each value\.$"),
    ],
)
def test_sample_weights_of_another_shape_are_refused(
    shape: tuple[int, ...], outputs: tuple[int, ...], sentence: str
) -> None:
    terms = loss.terms(compiled("mse"), ("output",))
    with pytest.raises(errors.UserCodeError, match=sentence) as caught:
        loss.fractions(terms, ("output",), tf.zeros(outputs), tf.zeros(outputs), tf.ones(shape))
    assert caught.value.function == "training_data"
