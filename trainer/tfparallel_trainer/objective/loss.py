"""The compiled loss as fractions, so that it can be summed over ranks before it is divided.

Keras reduces the loss of a batch to one number. If ranks have parts with different sizes, masks or
weights, the mean of such numbers is not the loss of the whole batch. So each term is kept as
(numerator, denominator). Both are added up over ranks, then divided. The rules of reduction are
those of `keras.losses.Loss`, with values v, sample weights w and mask m:

* sum_over_batch_size and mean: sum(v w m) / number of unmasked values.
* mean_with_sample_weight: sum(v w m) / sum(w m).
* sum: sum(v w m), which is not divided.

A loss function that gives one number for a batch is taken as the mean over its examples. With the
reduction "sum", it is the sum. The same holds for a `Loss` that overrides `__call__`. What a layer
adds is taken as a mean. An activity_regularizer adds such a mean, because Keras divides it by the
batch size. For add_loss, our documentation requires it.
"""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors, user
from tfparallel_trainer.lifecycle import error_classes
from tfparallel_trainer.objective import label_shapes

_MEANS = ("sum_over_batch_size", "mean")
WEIGHTED_MEAN = "mean_with_sample_weight"
SUM = "sum"
MEAN = _MEANS[0]

_ONLY_OUTPUT = "output"
"""The name of an output without a name."""

_WHOLE = ("dice", "tversky", "circle", "lossfunctionwrapper")
"""Keras' losses and functions that may use the batch as a whole, or call a user's function."""


@dataclasses.dataclass(frozen=True, slots=True)
class Fraction:
    """A term of the loss over some examples: two scalars."""

    numerator: tf.Tensor
    denominator: tf.Tensor
    """float64, without a gradient. A term that is not divided does not use it."""
    values_per_example: int | None = None
    """Number of values of each example in the denominator. None: it depends on the data."""


@dataclasses.dataclass(frozen=True, slots=True)
class Term:
    """The loss of one output or of a custom phase, or what layers add (see `added`)."""

    output: str
    """Its name; empty for what layers add."""
    function: Callable[..., tf.Tensor]
    """From targets and predictions [n, …] to values [n, …], or to one number."""
    reduction: str
    dtype: str
    weight: float
    reduces: bool = False
    """Whether the function also takes sample weights, and returns one number, as an overridden
    `__call__` does."""
    is_by_example: bool = False
    """Whether Keras' own code shows that each example has a loss of its own."""
    compiled: Any = None
    """The loss, or its name, that the model is compiled with."""

    @property
    def label(self) -> str:
        """The name of its value in logs."""
        return self.output if self.function is no_function else f"{self.output}_loss"

    @property
    def title(self) -> str:
        """The beginning of a sentence about it: the loss, its place in the code, the output."""
        if self.function is no_function:
            return f"The loss {self.output!r} of training_phases"
        name = self.compiled if isinstance(self.compiled, str) else user.describe(self.compiled)
        of_output = "" if self.output == _ONLY_OUTPUT else f" of the output {self.output!r}"
        return f"The loss {name}{of_output}"

    @property
    def divided(self) -> bool:
        """Whether the sum over ranks is divided by the sum of the denominators."""
        return self.reduction != SUM


def no_function(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    """Placeholder for the function of a term without targets; raises a TypeError."""
    raise TypeError("this term is no function of targets")


def terms(model: Any, names: tuple[str, ...]) -> list[Term]:
    """Read the compiled loss of a model with these outputs, or refuse it by a UserCodeError."""
    weights = model.get_compile_config().get("loss_weights")
    losses = _by_output(getattr(model, "loss", None), names, "loss")
    factors = _by_output(weights, names, "loss_weights")
    loss_terms = [
        _term(name, losses[name], 1.0 if factors[name] is None else float(factors[name]))
        for name in names
        if losses[name] is not None
    ]
    if not loss_terms:
        raise errors.UserCodeError(
            "compile_model gives the model no loss: pass loss= to model.compile.",
            function="compile_model",
        )
    return loss_terms


def fractions(
    loss_terms: Sequence[Term], names: tuple[str, ...], y: Any, y_pred: Any, sample_weight: Any
) -> list[Fraction]:
    """The terms over one rank's examples, in the order of `loss_terms`.

    Targets and predictions are [n, …] for each output in `names`. Weights are [n] or [n, …], for
    all outputs together or for each, or None.
    """
    targets = split(y, names, "y")
    predictions = split(y_pred, names, "the model's output")
    weights = spread(sample_weight, names, "sample_weight")
    return [
        _fraction(term, targets[term.output], predictions[term.output], weights[term.output])
        for term in loss_terms
        if term.output
    ]


def _by_output(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    if isinstance(value, dict):
        unknown = sorted(set(value) - set(names))
        if unknown:
            raise errors.UserCodeError(
                f"compile_model gives {what} for {unknown[0]!r}: name one of the model's outputs, "
                f"{', '.join(names)}.",
                function="compile_model",
            )
        return {name: value.get(name) for name in names}
    if isinstance(value, (list, tuple)):
        if len(value) != len(names):
            raise errors.UserCodeError(
                f"compile_model gives {len(value)} values for {what}; the model has "
                f"{len(names)} outputs ({', '.join(names)}): give one for each.",
                function="compile_model",
            )
        return dict(zip(names, value, strict=True))
    return dict.fromkeys(names, value)


def _term(name: str, compiled_loss: Any, weight: float) -> Term:
    if isinstance(compiled_loss, str) and compiled_loss.lower() in ("crossentropy", "ce"):
        kind = keras.config.floatx()
        return Term(name, _crossentropy, MEAN, kind, weight, False, True, compiled_loss)
    loss = keras.losses.get(compiled_loss)
    by_example = _is_by_example(loss)
    if not isinstance(loss, keras.losses.Loss):
        aligned, kind = _aligned(loss), keras.config.floatx()
        return Term(name, aligned, MEAN, kind, weight, False, by_example, loss)
    reduction, dtype = loss.reduction or "none", keras.backend.standardize_dtype(loss.dtype)
    if type(loss).__call__ is not keras.losses.Loss.__call__:
        kind = SUM if reduction == SUM else MEAN
        return Term(name, loss, kind, dtype, weight, reduces=True, compiled=loss)
    if reduction not in (*_MEANS, WEIGHTED_MEAN, SUM):
        raise errors.UserCodeError(
            f"The loss {loss.name!r} has reduction={loss.reduction!r}, which leaves no number to "
            'minimise: use reduction="sum_over_batch_size".',
            function="compile_model",
        )
    return Term(name, loss.call, reduction, dtype, weight, False, by_example, loss)


def _is_by_example(loss: Any) -> bool:
    """Whether a loss is Keras' own, and does not use the batch as a whole."""
    named = loss if hasattr(loss, "__name__") else type(loss)
    if not named.__module__.startswith("keras."):
        return False
    return named.__name__.lower() not in _WHOLE


def check_shapes(loss_terms: Sequence[Term], names: tuple[str, ...], y: Any, y_pred: Any) -> None:
    """Refuse (UserCodeError) labels that do not fit Keras' own losses of such outputs."""
    if y is None:
        return
    targets, predictions = split(y, names, "y"), split(y_pred, names, "the model's output")
    for term in loss_terms:
        if term.output and term.is_by_example and not isinstance(term.compiled, str):
            kind = getattr(term.compiled, "__name__", type(term.compiled).__name__)
            label_shapes.check_labels(
                term.title,
                kind.lower().replace("_", ""),
                targets[term.output],
                predictions[term.output],
            )


def _aligned(
    function: Callable[[tf.Tensor, tf.Tensor], tf.Tensor],
) -> Callable[[tf.Tensor, tf.Tensor], tf.Tensor]:
    """Match the numbers of axes for a plain function, as Keras does before it calls one."""
    return lambda y, y_pred: function(*same_rank(y, y_pred))


def _crossentropy(y: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
    if y_pred.shape[-1] == 1:
        return keras.losses.binary_crossentropy(y, y_pred)
    if y.shape.rank < y_pred.shape.rank or y.shape[-1] == 1:
        return keras.losses.sparse_categorical_crossentropy(y, y_pred)
    return keras.losses.categorical_crossentropy(y, y_pred)


def _fraction(term: Term, y: Any, y_pred: tf.Tensor, sample_weight: Any) -> Fraction:
    examples = tf.shape(y_pred)[0]
    if term.reduces:
        return _reduced(term, y, y_pred, sample_weight, examples)
    mask = mask_of(y_pred)
    values = _values(term, y, y_pred)
    mask = _both(mask, mask_of(values))
    if values.shape.rank == 0:
        return _of_examples(term, values, examples, sample_weight, mask)
    weights = tf.ones_like(values)
    valid = tf.cast(tf.size(values), tf.float64)
    if mask is not None:
        weights *= _like(mask, values)
        counted = tf.reduce_sum(tf.cast(mask, tf.float64))
        valid *= tf.math.divide_no_nan(counted, tf.cast(tf.size(mask), tf.float64))
    if sample_weight is not None:
        label_shapes.check_weights(term.title, sample_weight, values)
        weights *= _like(sample_weight, values)
    denominator = valid
    if term.reduction == WEIGHTED_MEAN:
        denominator = tf.cast(tf.reduce_sum(weights), tf.float64)
    values_per_example = None
    if mask is None and (term.reduction != WEIGHTED_MEAN or sample_weight is None):
        values_per_example = _values_per_example(term, values, y_pred)
    return Fraction(
        tf.reduce_sum(values * weights), tf.stop_gradient(denominator), values_per_example
    )


def _values_per_example(term: Term, values: tf.Tensor, y_pred: tf.Tensor) -> int | None:
    """The number of values of each example in a term.

    None: it does not follow from shapes alone. A user's function may return any number of values.
    Keras' own functions return those of each example, unless they reduce the first axis, which then
    has a static length.
    """
    if not term.is_by_example or values.shape.rank == 0 or values.shape[0] is not None:
        return None
    if not y_pred.shape[1:].is_fully_defined():
        return None
    count = values.shape[1:].num_elements()
    return None if count is None else int(count)


def masks_values(term: Term, y: Any, y_pred: tf.Tensor) -> bool:
    """Return whether the function of a term masks some of its values, as ignore_class does."""
    return not term.reduces and mask_of(_values(term, y, y_pred)) is not None


def _values(term: Term, y: Any, y_pred: tf.Tensor) -> tf.Tensor:
    target = tf.cast(tf.convert_to_tensor(y), term.dtype)
    try:
        return tf.convert_to_tensor(term.function(target, tf.cast(y_pred, term.dtype)))
    except (ValueError, TypeError, tf.errors.InvalidArgumentError) as error:
        if not term.is_by_example:
            raise
        raise errors.UserCodeError(
            f"{term.title} does not take labels (y) of the shape {tuple(target.shape)} for outputs "
            f"of the shape {tuple(y_pred.shape)}: {error_classes.read_message(error)}",
            function="compile_model",
        ) from error


def _reduced(
    term: Term, y: Any, y_pred: tf.Tensor, sample_weight: Any, examples: tf.Tensor
) -> Fraction:
    """The result of a loss's own `__call__`, taken as the mean or the sum over the examples."""
    target = tf.convert_to_tensor(y)
    if target.dtype.is_floating:
        target = tf.cast(target, term.dtype)
    value = tf.convert_to_tensor(term.function(target, y_pred, sample_weight))
    if value.shape.rank != 0:
        raise errors.UserCodeError(
            f"{term.title} overrides __call__, which gives a tensor of the shape "
            f"{tuple(value.shape)}: let it give one number.",
            function="compile_model",
        )
    return _of_number(term, value, examples)


def _of_examples(
    term: Term, value: tf.Tensor, examples: tf.Tensor, sample_weight: Any, mask: Any
) -> Fraction:
    if sample_weight is not None or mask is not None:
        raise errors.UserCodeError(
            f"{term.title} gives one number for a whole batch, so sample weights and masks cannot "
            "reach its examples. Let it give one value for each example.",
            function="compile_model",
        )
    return _of_number(term, value, examples)


def _of_number(term: Term, value: tf.Tensor, examples: tf.Tensor) -> Fraction:
    """The fraction of one number for some examples: their mean, or a sum that is not divided."""
    counted = examples if term.divided else tf.minimum(examples, 1)
    # Without examples, it may be NaN, and does not count.
    total = tf.math.multiply_no_nan(value, tf.cast(counted, value.dtype))
    return Fraction(total, tf.cast(examples, tf.float64))


def _both(first: tf.Tensor | None, second: tf.Tensor | None) -> tf.Tensor | None:
    if first is None or second is None:
        return second if first is None else first
    return tf.logical_and(tf.cast(first, tf.bool), tf.cast(second, tf.bool))


def _like(weights: Any, values: tf.Tensor) -> tf.Tensor:
    """Cast weights [n] or [n, …] to the type of values, with as many dimensions."""
    aligned = tf.cast(tf.convert_to_tensor(weights), values.dtype)
    if aligned.shape.rank == values.shape.rank + 1 and aligned.shape[-1] == 1:
        aligned = tf.squeeze(aligned, -1)
    while aligned.shape.rank < values.shape.rank:
        aligned = aligned[..., tf.newaxis]
    return aligned


ADDED = Term("", no_function, MEAN, "float32", 1.0)
"""The term that every model has besides those of its outputs."""


def added(model: Any, examples: tf.Tensor) -> Fraction:
    """The losses that layers added in the model's last call, on this many examples."""
    losses = model.losses
    regularised = [weight for weight in model.trainable_weights if weight.regularizer is not None]
    added_losses = losses[
        : len(losses) - len(regularised)
    ]  # Keras lists the losses of the weights last
    kind = keras.config.floatx()
    total = tf.add_n(
        [
            tf.zeros((), kind),
            *(tf.cast(tf.reduce_sum(added_loss), kind) for added_loss in added_losses),
        ]
    )
    count = tf.cast(examples, kind)
    # Without examples, the mean is NaN, and does not count.
    numerator = tf.math.multiply_no_nan(total, count)
    return Fraction(numerator, tf.cast(count, tf.float64), 1)


def names_of(model: Any, y_pred: Any) -> tuple[str, ...]:
    """Name the outputs of a model from its result: by keys, the model's names, or positions."""
    if isinstance(y_pred, dict):
        names, parts = tuple(y_pred), list(y_pred.values())
    elif isinstance(y_pred, (list, tuple)):
        output_names = getattr(model, "output_names", None)
        names = tuple(output_names or (f"output_{index}" for index in range(len(y_pred))))
        parts = list(y_pred)
    else:
        names, parts = (_ONLY_OUTPUT,), [y_pred]
    if any(keras.tree.is_nested(part) for part in parts):
        raise errors.UserCodeError(
            "build_model gives a model with outputs inside outputs: let it give one tensor, or a "
            "list, tuple or dictionary of tensors.",
            function="build_model",
        )
    return names


def split(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Return each output's part of a tensor, sequence or dictionary, or a UserCodeError."""
    if isinstance(value, dict) and set(value) >= set(names):
        return {name: value[name] for name in names}
    if isinstance(value, (list, tuple)) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if not keras.tree.is_nested(value) and len(names) == 1:
        return {names[0]: value}
    shape = keras.tree.map_structure(lambda _: "·", value)
    raise errors.UserCodeError(
        f"{what} has the structure {shape}; the model has the outputs {', '.join(names)}: "
        f"let the data functions give {what} in that structure.",
        function="training_data",
    )


def spread(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Like `split`, but all outputs get a single tensor (or None)."""
    if value is None or not keras.tree.is_nested(value):
        return dict.fromkeys(names, value)
    return split(value, names, what)


def same_rank(first: tf.Tensor, second: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Remove or add a last dimension of 1 where the ranks differ by one, as Keras' losses do."""
    if first.shape.rank < second.shape.rank:
        second, first = same_rank(second, first)
    elif first.shape.rank == second.shape.rank + 1 and first.shape[-1] == 1:
        if second.shape.rank == 1:
            return first, second[..., tf.newaxis]
        return tf.squeeze(first, -1), second
    return first, second


def mask_of(tensor: tf.Tensor) -> tf.Tensor | None:
    """The mask that Keras keeps with a tensor, or None, by the public way to read it."""
    _, mask = _MaskReader()(tensor)
    return mask


class _MaskReader(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    def __init__(self) -> None:
        super().__init__(name="mask_reader", autocast=False)
        self.supports_masking = True

    def call(self, tensor: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, Any]:
        return tensor, mask
