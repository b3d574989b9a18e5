"""Matches targets, predictions and weights to the outputs of a model, and reads masks."""

from typing import Any

import keras
import tensorflow as tf

from tfparallel_trainer import errors


def names_of(model: Any, y_pred: Any) -> tuple[str, ...]:
    """Name the outputs of a model from what it gave: keys, the model's names, or positions."""
    if isinstance(y_pred, dict):
        names, parts = tuple(y_pred), list(y_pred.values())
    elif isinstance(y_pred, (list, tuple)):
        output_names = getattr(model, "output_names", None)
        names = tuple(output_names or (f"output_{place}" for place in range(len(y_pred))))
        parts = list(y_pred)
    else:
        names, parts = ("output",), [y_pred]
    if any(keras.tree.is_nested(part) for part in parts):
        raise errors.UserCodeError(
            "build_model gives a model with outputs inside outputs: let it give one tensor, or a "
            "list, tuple or dictionary of tensors."
        )
    return names


def split(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Give each output its part of a tensor, sequence or dictionary, if these are its parts."""
    if isinstance(value, dict) and set(value) >= set(names):
        return {name: value[name] for name in names}
    if isinstance(value, (list, tuple)) and len(value) == len(names):
        return dict(zip(names, value, strict=True))
    if not keras.tree.is_nested(value) and len(names) == 1:
        return {names[0]: value}
    shape = keras.tree.map_structure(lambda _: "·", value)
    raise errors.UserCodeError(
        f"{what} has the structure {shape}; the model has the outputs {', '.join(names)}: "
        "let the data functions give y in that structure."
    )


def spread(value: Any, names: tuple[str, ...], what: str) -> dict[str, Any]:
    """Like `split`, but one tensor (or None) goes to every output."""
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
    """The mask that Keras keeps with a tensor, or None.

    Keras hands it to any layer whose call has the argument `mask`: the public way to read it.
    """
    _, mask = _MaskReader()(tensor)
    return mask


class _MaskReader(keras.layers.Layer):  # type: ignore[misc]  # Keras has no types
    def __init__(self) -> None:
        super().__init__(name="mask_reader", autocast=False)
        self.supports_masking = True

    def call(self, tensor: tf.Tensor, mask: Any = None) -> tuple[tf.Tensor, Any]:
        return tensor, mask
