"""Which activation functions work on each element by itself, so that a part of a tensor will do."""

from typing import Any

import keras

from tfparallel_trainer.engines.split.model import operations

_ALONG_CHANNELS = (keras.activations.softmax, keras.activations.log_softmax)


def is_elementwise(activation: Any) -> bool:
    """Whether a function, as an attribute of a layer, is known to be; None is no function."""
    return activation is None or operations.name_of(activation) in operations.ELEMENTWISE


def is_along_channels(activation: Any) -> bool:
    """Whether a function is known to need the last dimension of its input whole, and no other."""
    return any(activation is one for one in _ALONG_CHANNELS)


def is_by_place(activation: Any) -> bool:
    """Whether a function is known to work on each place by itself, with all of its channels."""
    return is_elementwise(activation) or is_along_channels(activation)


def name_of(activation: Any) -> str:
    """The name of an activation for people."""
    return str(getattr(activation, "__name__", type(activation).__name__))


def apply(activation: Any, tensor: Any) -> Any:
    """Give what a layer's activation makes of a tensor."""
    return tensor if activation is None else activation(tensor)
