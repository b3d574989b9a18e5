"""The loss as fractions: summed over any cut of a batch it is Keras' own loss."""

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tfparallel_trainer import errors
from tfparallel_trainer.objective import loss

N, T, C = 12, 5, 4


def mean_of_squares(y: Any, y_pred: Any) -> Any:
    return keras.ops.mean((y - y_pred) ** 2)


LOSSES = {
    "name": lambda: "mse",
    "function": lambda: keras.losses.mean_absolute_error,
    "one number": lambda: mean_of_squares,
    "huber sum": lambda: keras.losses.Huber(reduction="sum"),
    "weighted mean": lambda: keras.losses.MeanSquaredError(reduction="mean_with_sample_weight"),
}


def whole(model: Any, y: Any, y_pred: Any, weight: Any, cuts: list[int]) -> float:
    """The loss from fractions over the parts of a batch."""
    names = loss.names_of(model, y_pred)
    terms = loss.terms(model, names)
    above, below = np.zeros(len(terms)), np.zeros(len(terms))
    bounds = [0, *sorted(cuts), N]
    for first, last in itertools.pairwise(bounds):
        if first == last:
            continue
        part = keras.tree.map_structure(
            lambda array, a=first, b=last: keras.ops.convert_to_tensor(array[a:b]),
            (y, y_pred) if weight is None else (y, y_pred, weight),
        )
        fractions = loss.fractions(
            terms, names, part[0], part[1], None if weight is None else part[2]
        )
        above += [float(fraction.numerator) for fraction in fractions]
        below += [float(fraction.denominator) for fraction in fractions]
    return sum(
        term.weight * (a / b if term.divided else a)
        for term, a, b in zip(terms, above, below, strict=True)
    )


def compiled(given_loss: Any, **more: Any) -> Any:
    model = keras.Sequential([keras.Input((T,)), keras.layers.Dense(T)])
    model.compile("sgd", given_loss, **more)
    return model


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("weighted", [False, True])
@settings(deadline=None, max_examples=8)
@given(cuts=st.lists(st.integers(0, N), max_size=3), seed=st.integers(0, 99))
def test_any_cut_gives_the_loss_of_keras(
    name: str, weighted: bool, cuts: list[int], seed: int
) -> None:
    random = np.random.default_rng(seed)
    y, y_pred = random.normal(size=(2, N, T))
    weight = random.uniform(0.1, 2, N) if weighted else None
    make: Callable[[], Any] = LOSSES[name]
    model = compiled(make())
    if name == "one number" and weighted:
        with pytest.raises(errors.UserCodeError, match="one number for a whole batch"):
            whole(model, y, y_pred, weight, cuts)
        return
    expected = float(model.compute_loss(None, y, y_pred, weight))
    assert whole(model, y, y_pred, weight, cuts) == pytest.approx(expected, rel=1e-12)


class Total(keras.losses.Loss):
    """Gives the sum of a batch as one number."""

    def call(self, y: Any, y_pred: Any) -> Any:
        return keras.ops.sum((y - y_pred) ** 2)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("kind", [keras.losses.Dice, keras.losses.Tversky, Total])
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size", "mean_with_sample_weight"])
def test_one_number_for_a_batch_is_not_summed_over_its_examples(kind: Any, reduction: str) -> None:
    y, y_pred = np.random.default_rng(0).uniform(size=(2, N, T))
    model = compiled(kind(reduction=reduction))
    expected = float(model.compute_loss(None, y, keras.ops.convert_to_tensor(y_pred)))
    assert whole(model, y, y_pred, None, []) == pytest.approx(expected, rel=1e-12)
    if kind is Total and reduction == "sum":
        assert whole(model, y, y_pred, None, [1, 5]) == pytest.approx(expected, rel=1e-12)


class Mean(keras.losses.Loss):
    """Gives the mean of a batch as one number: NaN where the batch has no examples."""

    def call(self, y: Any, y_pred: Any) -> Any:
        return mean_of_squares(y, y_pred)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("reduction", ["sum", "sum_over_batch_size"])
def test_one_number_for_no_examples_counts_for_nothing(reduction: str) -> None:
    model, no_examples = compiled(Mean(reduction=reduction)), keras.ops.zeros((0, T))
    names = loss.names_of(model, no_examples)
    [fraction] = loss.fractions(loss.terms(model, names), names, no_examples, no_examples, None)
    assert (float(fraction.numerator), float(fraction.denominator)) == (0.0, 0.0)


@pytest.mark.usefixtures("float64")
def test_ignored_classes_do_not_count() -> None:
    random = np.random.default_rng(0)
    y = random.integers(0, C, (N, T))
    y_pred = random.normal(size=(N, T, C))
    model = compiled(keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0))
    expected = float(model.compute_loss(None, y, keras.ops.convert_to_tensor(y_pred)))
    assert whole(model, y, y_pred, None, [1, 5]) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("given_loss", "more", "pattern"),
    [
        (None, {}, "no loss"),
        (keras.losses.MeanSquaredError(reduction="none"), {}, "reduction"),
        ({"other": "mse"}, {}, "loss for 'other': name one of the model's outputs, output"),
        (["mse", "mae"], {}, "2 values for loss"),
    ],
)
def test_losses_that_do_not_fit_are_refused(given_loss: Any, more: Any, pattern: str) -> None:
    with pytest.raises(errors.UserCodeError, match=pattern):
        loss.terms(compiled(given_loss, **more), ("output",))


def test_targets_must_have_the_structure_of_the_outputs() -> None:
    with pytest.raises(errors.UserCodeError, match="the model has the outputs a, b"):
        loss.split(np.zeros(3), ("a", "b"), "y")
