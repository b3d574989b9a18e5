"""Bytes that an optimizer holds for each weight, without creating them."""

import collections
import contextlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph

_SIZES = (2, 3, 5, 7, 11, 13, 17)
"""Different sizes for the dimensions of a stand-in, so that its slots' dimensions tell theirs."""

_Kind = tuple[tuple[int, ...], str]
"""Shape and type of a variable."""


def of(
    optimizer: Any, variables: Mapping[str, Any], shapes: Mapping[str, Sequence[int]] | None = None
) -> tuple[dict[str, int], int]:
    """Count what an optimizer of the same kind and configuration would hold.

    It is built on small stand-ins with as many dimensions as the weights have; each dimension of a
    slot is one of its weight's.

    Args:
        optimizer: the one that the user compiled the model with.
        variables: those of a skeleton, by key; what is not trained has no slots.
        shapes: those of the parts that a device holds, where they are not the whole, by key.

    Returns:
        Bytes of each variable that is trained, by key; and bytes that belong to none.

    Raises:
        UserCodeError: the optimizer cannot be made from its configuration.
    """
    known: dict[Any, collections.Counter[_Kind]] = {}
    fixed = _built(optimizer, ())
    bytes_by_key: dict[str, int] = {}
    for key, variable in variables.items():
        if not variable.trainable:
            continue
        shape = tuple((shapes or {}).get(key, variable.shape))
        kind = (len(shape), variable.dtype, _label(optimizer, variable))
        if kind not in known:
            known[kind] = _built(optimizer, (variable,)) - fixed
        sizes = dict(zip(_SIZES, shape, strict=False))
        bytes_by_key[key] = sum(
            math.prod(sizes.get(size, size) for size in slot) * graph.itemsize(dtype)
            for slot, dtype in known[kind].elements()
        )
    return bytes_by_key, sum(
        math.prod(slot) * graph.itemsize(dtype) for slot, dtype in fixed.elements()
    )


_IN_TURN = (keras.optimizers.Adafactor, keras.optimizers.Muon)
"""They compute norms and products of a weight's gradient, which come one after the other."""


def copies(optimizer: Any) -> float:
    """How many times the gradients are there besides, while an optimizer with slots updates.

    TensorFlow begins with the slots of all weights before it ends with those of the first. A
    gradient stays until its last slot is done. Measured on CPU for each of Keras' optimizers.
    """
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    return 0.0 if isinstance(inner, _IN_TURN) else 1.0


def _label(optimizer: Any, variable: Any) -> str:
    """What tells weights of one kind apart: Muon goes by their names."""
    return variable.path if isinstance(optimizer, keras.optimizers.Muon) else ""


def _built(optimizer: Any, like: Sequence[Any]) -> collections.Counter[_Kind]:
    """Shapes and types of an optimizer's variables, for stand-ins of some weights."""
    try:
        optimizer_copy = type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} cannot be made again from its get_config "
            f"({error}), which training on a mesh needs: let get_config give what __init__ takes."
        ) from error
    optimizer_copy.build([_stand_in(one) for one in like])
    return collections.Counter((tuple(one.shape), one.dtype) for one in optimizer_copy.variables)


def _stand_in(variable: Any) -> Any:
    *scopes, name = variable.path.split("/")
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        return keras.Variable(
            "zeros", shape=_SIZES[: len(variable.shape)], dtype=variable.dtype, name=name
        )
