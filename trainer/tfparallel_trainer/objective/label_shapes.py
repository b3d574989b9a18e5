"""Refuses labels and sample weights whose shapes a loss does not take, by names and shapes.

Keras' losses broadcast where shapes differ, or fail by words about tensors that nobody has written.
"""

from typing import Any

from tfparallel_trainer import errors

_SPARSE = "sparsecategoricalcrossentropy"
_CROSSENTROPIES = frozenset(
    {"binarycrossentropy", "binaryfocalcrossentropy", "categoricalcrossentropy"}
)
"""Losses whose labels have the shape of the outputs."""
_BROADCASTING = frozenset(
    {
        *("categoricalfocalcrossentropy", "categoricalhinge", "cosinesimilarity", "hinge"),
        *("huber", "kldivergence", "logcosh"),
        *("meanabsoluteerror", "meanabsolutepercentageerror", "meansquarederror"),
        *("meansquaredlogarithmicerror", "poisson", "squaredhinge"),
    }
)
"""Losses that repeat labels along axes of the length 1."""
_FOR_CLASSES = "For integer labels use SparseCategoricalCrossentropy."

Shape = tuple[int | None, ...]
"""Of one example; None for a length that only the data tell."""


def check_labels(title: str, kind: str, y: Any, y_pred: Any) -> None:
    """Refuse (UserCodeError) labels whose shape does not fit the outputs.

    Args:
        title: the loss, as the beginning of a sentence.
        kind: the name of Keras' loss, in lower case without underscores; others pass.
        y: the labels, which have a shape and a dtype.
        y_pred: the outputs, which have a shape.
    """
    is_known = kind in _CROSSENTROPIES or kind in _BROADCASTING or kind == _SPARSE
    if not is_known or not y.shape.rank or not y_pred.shape.rank:
        return
    labels, outputs = tuple(y.shape)[1:], tuple(y_pred.shape)[1:]
    if kind == _SPARSE:
        problem = _find_sparse_problem(labels, outputs)
    else:
        problem = _find_problem(labels, outputs, kind, is_integer=not y.dtype.is_floating)
    if problem:
        raise errors.UserCodeError(
            f"{title} gets labels (y) of the shape {labels} for each example, and the model gives "
            f"{outputs}. {problem}",
            function="compile_model",
        )


def check_weights(title: str, weights: Any, values: Any) -> None:
    """Refuse (UserCodeError) sample weights that do not fit the values of a loss.

    Both have a shape [n, …].
    """
    shape, value_shape = tuple(weights.shape)[1:], tuple(values.shape)[1:]
    if len(shape) <= len(value_shape) and _broadcasts(shape, value_shape[: len(shape)]):
        return
    if shape[-1] == 1 and _broadcasts(shape[:-1], value_shape):
        return
    remedy = "Give one weight for each example"
    raise errors.UserCodeError(
        f"{title} gets sample weights of the shape {shape} for each example, and has values of the "
        f"shape {value_shape}. {remedy}{', or one for each value' if value_shape else ''}.",
        function="training_data",
    )


def _find_sparse_problem(labels: Shape, outputs: Shape) -> str:
    classes = outputs[:-1]
    if (
        not outputs
        or outputs[-1] == 1
        or _equals(labels, classes)
        or _equals(labels, (*classes, 1))
    ):
        return ""
    if _equals(labels, outputs):
        return "For one-hot labels use CategoricalCrossentropy."
    return f"Give one class for each prediction, which are labels of the shape {classes}."


def _find_problem(labels: Shape, outputs: Shape, kind: str, *, is_integer: bool) -> str:
    aligned = _aligned(labels, outputs)
    fits = _equals if kind in _CROSSENTROPIES else _broadcasts
    if fits(*aligned):
        return ""
    may_be_classes = "binary" not in kind and outputs and (is_integer or "categorical" in kind)
    if may_be_classes and labels in (outputs[:-1], (*outputs[:-1], 1)):
        return _FOR_CLASSES
    return f"Give labels of the shape {outputs}, or let the last layer give {labels}."


def _aligned(labels: Shape, outputs: Shape) -> tuple[Shape, Shape]:
    """Leave out a last axis of the length 1 where the other side lacks it, as Keras does."""
    if len(labels) == len(outputs) + 1 and labels[-1] == 1:
        return labels[:-1], outputs
    if len(outputs) == len(labels) + 1 and outputs[-1] == 1:
        return labels, outputs[:-1]
    return labels, outputs


def _equals(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )


def _broadcasts(one: Shape, other: Shape) -> bool:
    return len(one) == len(other) and all(
        None in pair or 1 in pair or pair[0] == pair[1] for pair in zip(one, other, strict=True)
    )
