"""Finds the weight of each variable of an optimizer, and the weight's axes that it has.

Keras does not record this. But every optimizer creates its variables in one order, with names that
contain those of the weights. So an optimizer that is built for tiny stand-ins shows it. Each axis
of a stand-in has a different length, so missing axes show too, as those of Adafactor's factors.
"""

import collections
import contextlib
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import keys, shard

_LENGTHS = (2, 3, 5, 7, 11, 13, 17, 19)
_MARK = re.compile(r"standin(\d+)standin")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """A variable of an optimizer, identified without its position."""

    weight: str | None
    """Key of its weight; None for a counter or the learning rate."""
    name: str
    """Its path, without the weight's."""
    number: int
    """Its number among variables of the same weight and name."""
    axes: tuple[int, ...]
    """The weight's axes that it has."""
    dtype: str = dataclasses.field(compare=False)


def find_slots(optimizer: Any, weights: Mapping[str, Any]) -> list[Slot]:
    """Describe the variables of an optimizer once it is built for these weights, in order.

    The optimizer, built or not, stays as it is, and the weights' values are not used. If its
    configuration does not rebuild it, or does not show enough, it is a UserCodeError.
    """
    probe = rebuilt(optimizer)
    try:
        probe.build(stand_ins(weights))
        return _read(probe, list(weights))
    except (ValueError, TypeError, KeyError, IndexError, AttributeError, RuntimeError) as error:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} cannot train a divided model, because it "
            f"does not show which weight its variables belong to ({error}). Use one of Keras', or "
            "create its variables with add_variable_from_reference.",
            function="compile_model",
        ) from error


def rebuilt(optimizer: Any) -> Any:
    """Build an optimizer from the configuration of another one, or raise a UserCodeError."""
    try:
        return type(optimizer).from_config(optimizer.get_config())
    except (TypeError, ValueError) as error:
        raise errors.UserCodeError(
            f"The optimizer {type(optimizer).__name__} cannot be made again from its get_config "
            f"({error}), which training on a mesh needs: let get_config give what __init__ takes.",
            function="compile_model",
        ) from error


def keys_of(whole: Sequence[Slot]) -> dict[Slot, str]:
    """The key of each variable in a checkpoint, from those of the unsplit model's optimizer."""
    slot_keys: dict[Slot, str] = {}
    for position, slot in enumerate(whole):
        slot_keys.setdefault(slot, keys.slot(position))
    return slot_keys


def shards(
    optimizer: Any,
    weights: Mapping[str, shard.VariableShard],
    named: Mapping[Slot, str],
    *,
    writes_counters: bool,
) -> dict[str, shard.VariableShard]:
    """Describe the variables of a rank's optimizer, which are sharded as the rank's weights.

    A variable that the unsplit model's optimizer lacks is a UserCodeError.

    Args:
        optimizer: the rank's, built for these weights; it has the name of the unsplit model's.
        weights: those that are trained, in the order in which the optimizer got them.
        named: the keys, from `keys_of`.
        writes_counters: whether this is the one rank that writes what belongs to no weight.
    """
    shards_by_key: dict[str, shard.VariableShard] = {}
    slots = find_slots(
        optimizer, {key: weight_shard.variable for key, weight_shard in weights.items()}
    )
    for slot, variable in zip(slots, optimizer.variables, strict=True):
        if slot not in named:
            raise errors.UserCodeError(
                f"The optimizer {type(optimizer).__name__} creates {variable.path} for a sharded "
                "model but not for the full one.",
                function="compile_model",
            )
        if slot.weight is None:
            whole = shard.FullVariable(tuple(variable.shape), variable.path)
            slot_shard = shard.VariableShard(variable=variable, whole=whole, writes=writes_counters)
        else:
            weight = weights[slot.weight]
            slices = weight.box.slices
            shape = tuple(weight.whole.shape[axis] for axis in slot.axes)
            slot_shard = shard.VariableShard(
                variable=variable,
                whole=shard.FullVariable(shape, variable.path),
                part=tuple(slices[axis] for axis in slot.axes),
                writes=weight.writes and (len(slot.axes) == len(slices) or _first(weight, slot)),
            )
        shards_by_key.setdefault(named[slot], slot_shard)
    return shards_by_key


def stand_ins(weights: Mapping[str, Any], dtype: str | None = None) -> list[Any]:
    """Variables of a few bytes that optimizers treat as these weights, of `dtype` if given."""
    return [_stand_in(index, weight, dtype) for index, weight in enumerate(weights.values())]


def _first(weight: shard.VariableShard, slot: Slot) -> bool:
    """Of the ranks that hold one part of a variable without some axes, those that begin them."""
    return all(start == 0 for axis, start in enumerate(weight.box.start) if axis not in slot.axes)


def _stand_in(index: int, weight: Any, dtype: str | None) -> Any:
    """A stand-in whose name its slots' names contain."""
    if len(weight.shape) > len(_LENGTHS):
        raise ValueError(f"{weight.path} has {len(weight.shape)} axes")
    *scopes, name = weight.path.split("/")
    value = np.zeros(_LENGTHS[: len(weight.shape)])
    with contextlib.ExitStack() as stack:
        for scope in scopes:
            stack.enter_context(keras.name_scope(scope))
        variable = keras.Variable(
            value, dtype=dtype or weight.dtype, name=f"{name}standin{index}standin"
        )
    variable.overwrite_with_gradient = weight.overwrite_with_gradient
    return variable


def _read(probe: Any, weights: Sequence[str]) -> list[Slot]:
    counted: collections.Counter[tuple[str | None, str]] = collections.Counter()
    slots_by_id: dict[int, Slot] = {}  # an optimizer may list one of its own twice
    for variable in probe.variables:
        if id(variable) in slots_by_id:
            continue
        mark = _MARK.search(variable.path)
        weight = None if mark is None else weights[int(mark[1])]
        name = variable.path[mark.end() :] if mark is not None else _name(variable.path)
        axes = () if mark is None else _axes(variable)
        number = counted[weight, name]
        counted[weight, name] += 1
        slots_by_id[id(variable)] = Slot(
            weight=weight, name=name, number=number, axes=axes, dtype=variable.dtype
        )
    return [slots_by_id[id(variable)] for variable in probe.variables]


def _name(path: str) -> str:
    """The name of a variable without a weight, without the optimizer's, which Keras may number.

    A variable outside an optimizer has only a number.
    """
    return path.rpartition("/")[2] if "/" in path else ""


def _axes(variable: Any) -> tuple[int, ...]:
    """The axes of its stand-in that a variable has; a ValueError if it has others."""
    axes = tuple(_LENGTHS.index(length) for length in variable.shape)
    if list(axes) != sorted(set(axes)):
        raise ValueError(f"{variable.path} has axes of its own")
    return axes
