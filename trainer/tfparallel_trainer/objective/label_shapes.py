"""Refuses labels and sample weights of shapes that a loss or metric does not take, by names.

If shapes differ, Keras' losses and metrics broadcast, and so compare different examples. Or they
fail with a message about tensors that the user does not know.
"""

from collections.abc import Iterator
from typing import Any

from keras.src.metrics import reduction_metrics  # for the function of a metric
from keras.src.trainers import compile_utils  # not in the public API

from tfparallel_trainer import errors

_SPARSE = frozenset({"sparsecategoricalcrossentropy", "sparsecategoricalaccuracy"})
"""Losses and metrics that take the numbers of classes."""
_LARGEST = frozenset({"categoricalaccuracy", "topkcategoricalaccuracy"})
"""Metrics that use the largest label of an example along the last axis."""
_CROSSENTROPIES = frozenset(
    {"binarycrossentropy", "binaryfocalcrossentropy", "categoricalcrossentropy"}
)
"""Losses and metrics whose labels have the shape of the outputs."""
_BROADCASTING = frozenset(
    {
        *("categoricalfocalcrossentropy", "categoricalhinge", "cosinesimilarity", "hinge"),
        *("huber", "kldivergence", "logcosh"),
        *("meanabsoluteerror", "meanabsolutepercentageerror", "meansquarederror"),
        *("meansquaredlogarithmicerror", "poisson", "squaredhinge"),
        *("accuracy", "binaryaccuracy", "logcosherror", "rootmeansquarederror"),
    }
)
"""Losses and metrics that repeat labels along axes of the length 1."""
_UNALIGNED = _CROSSENTROPIES | {
    *("categoricalhinge", "hinge", "kldivergence", "poisson", "squaredhinge")
}
"""Metrics that Keras calls without removing a last axis of length 1."""

Shape = tuple[int | None, ...]
"""The shape of one example; None for a length that depends on the data."""


def check_labels(title: str, kind: str, y: Any, y_pred: Any, *, is_metric: bool = False) -> None:
    """Refuse (UserCodeError) labels whose shape does not fit the outputs.

    Args:
        title: the loss or metric, as the beginning of a sentence.
        kind: its name in Keras, in lower case without underscores; others pass.
        y: the labels, which have a shape and a dtype.
        y_pred: the outputs, which have a shape.
        is_metric: whether it is a metric, for which Keras compares shapes differently.
    """
    is_known = any(kind in kinds for kinds in (_CROSSENTROPIES, _BROADCASTING, _SPARSE, _LARGEST))
    if not is_known or not y.shape.rank or not y_pred.shape.rank:
        return
    labels, outputs = tuple(y.shape)[1:], tuple(y_pred.shape)[1:]
    use = "Accuracy" if is_metric else "Crossentropy"
    if kind in _SPARSE:
        problem = _find_sparse_problem(labels, outputs, kind, use)
    else:
        aligns = not (is_metric and kind in _UNALIGNED)
        may_be_classes = not y.dtype.is_floating or "categorical" in kind
        for_classes = f"SparseCategorical{use}" if may_be_classes else ""
        problem = _find_problem(labels, outputs, kind, for_classes, aligns=aligns)
    if problem:
        raise errors.UserCodeError(
            f"{title} gets labels (y) of the shape {labels} for each example, and the model gives "
            f"{outputs}. {problem}",
            function="compile_model",
        )


def check_metrics(model: Any, y: Any, y_pred: Any, specs: Any = None) -> None:
    """Refuse (UserCodeError) labels that one of Keras' metrics does not take for such outputs.

    The model's metrics are built, if they are not yet. `specs` may have the shapes of outputs
    instead, with None for a length that depends on the data.
    """
    compiled = [
        metric for metric in model.metrics if isinstance(metric, compile_utils.CompileMetrics)
    ]
    for metrics in compiled if y is not None else ():
        if not metrics.built:
            metrics.build(y, y_pred)
        labels = metrics._flatten_y(y)
        outputs = metrics._flatten_y(y_pred if specs is None else specs)
        for by_output in (metrics._flat_metrics, metrics._flat_weighted_metrics):
            for several, *shapes in zip(by_output, labels, outputs, strict=False):
                for title, kind in _titled(several):
                    check_labels(title, kind, *shapes, is_metric=True)


def _titled(several: Any) -> Iterator[tuple[str, str]]:
    """The beginning of a sentence about each of Keras' own metrics of an output, and its kind."""
    for metric in several.metrics if several is not None else ():
        is_function = type(metric) is reduction_metrics.MeanMetricWrapper
        named = metric._fn if is_function else type(metric)
        if getattr(named, "__module__", "").startswith("keras."):
            of_output = f" of the output {several.output_name!r}" if several.output_name else ""
            yield f"The metric {metric.name}{of_output}", named.__name__.lower().replace("_", "")


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


def _find_sparse_problem(labels: Shape, outputs: Shape, kind: str, use: str) -> str:
    classes = outputs[:-1]
    fits = _broadcasts if kind == "sparsecategoricalaccuracy" else _equals
    if not outputs or outputs[-1] == 1 or fits(labels, classes) or _equals(labels, (*classes, 1)):
        return ""
    if _equals(labels, outputs):
        return f"For one-hot labels use Categorical{use}."
    return f"Give one class for each prediction, which are labels of the shape {classes}."


def _find_problem(
    labels: Shape, outputs: Shape, kind: str, for_classes: str, *, aligns: bool
) -> str:
    if kind in _LARGEST:
        fits = bool(labels) and _broadcasts(labels[:-1], outputs[:-1])
    else:
        compare = _equals if kind in _CROSSENTROPIES else _broadcasts
        fits = compare(*(_aligned(labels, outputs) if aligns else (labels, outputs)))
    if fits:
        return ""
    is_sparse = outputs and labels in (outputs[:-1], (*outputs[:-1], 1))
    if for_classes and is_sparse and "binary" not in kind:
        return f"For integer labels use {for_classes}."
    return f"Give labels of the shape {outputs}, or let the last layer give {labels}."


def _aligned(labels: Shape, outputs: Shape) -> tuple[Shape, Shape]:
    """Remove a last axis of length 1 if the other side lacks it, as Keras does."""
    if len(labels) == len(outputs) + 1 and labels[-1] == 1:
        return labels[:-1], outputs
    if len(outputs) == len(labels) + 1 and outputs[-1] == 1:
        return labels, outputs[:-1]
    return labels, outputs


def _equals(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(
        None in pair or pair[0] == pair[1] for pair in zip(shape, other, strict=True)
    )


def _broadcasts(shape: Shape, other: Shape) -> bool:
    return len(shape) == len(other) and all(
        None in pair or 1 in pair or pair[0] == pair[1] for pair in zip(shape, other, strict=True)
    )
