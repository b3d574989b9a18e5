"""The unsplit model, compiled but without values: all that a divided model's checkpoint holds.

Each process has one, besides what its ranks train. Its optimizer is built for stand-ins of a few
bytes, so that it has as many variables as that of the unsplit model, in the same order.
"""

import dataclasses
from typing import Any

import tensorflow as tf

from tfparallel_trainer import user
from tfparallel_trainer.checkpoint import keys, shard, slots
from tfparallel_trainer.checkpoint.slots import Slot
from tfparallel_trainer.engines.split.model import skeleton
from tfparallel_trainer.objective import replica


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Blueprint:
    """The description of the unsplit model, in all processes."""

    model: Any
    """Compiled by the user."""
    weights: dict[str, Any]
    """The weights of the model by key; they have no values."""
    slots: dict[Slot, str]
    """Keys of the optimizer's variables."""
    wholes: dict[str, shard.FullVariable]
    """All that a checkpoint holds, by key."""

    @property
    def counters(self) -> dict[str, Any]:
        """The optimizer's variables without axes, by key: its counters and its rate."""
        variables = keys.of_optimizer(self.model.optimizer)
        return {key: variables[key] for slot, key in self.slots.items() if not slot.axes}

    @property
    def stand_ins(self) -> dict[str, Any]:
        """The optimizer's other variables, by key: stand-ins."""
        variables = keys.of_optimizer(self.model.optimizer)
        return {key: variables[key] for slot, key in self.slots.items() if slot.axes}

    @property
    def averages(self) -> dict[str, str]:
        """For weights of which the optimizer has an average (use_ema), the key of that."""
        inner = getattr(self.model.optimizer, "inner_optimizer", self.model.optimizer)
        if not inner.use_ema or int(tf.convert_to_tensor(inner.iterations)) == 0:
            return {}
        return {
            slot.weight: key
            for slot, key in self.slots.items()
            if slot.weight is not None and slot.name == "_average"
        }


def draw(module: user.Module, seed: int) -> Blueprint:
    """Build and compile the user's model without values, or raise a UserCodeError."""
    replica.forget_names()
    model = skeleton.build(module, seed)
    skeleton.compile_model(module, model)
    weights = keys.of_weights(model)
    by_id = {id(variable): key for key, variable in weights.items()}
    trained = {by_id[id(variable)]: variable for variable in model.trainable_variables}
    named = slots.keys_of(slots.find_slots(model.optimizer, trained))
    model.optimizer.build(slots.stand_ins(trained, "float64"))
    wholes = {
        key: shard.FullVariable(tuple(variable.shape), variable.path)
        for key, variable in weights.items()
    }
    for slot, key in named.items():
        weight = None if slot.weight is None else trained[slot.weight]
        shape = () if weight is None else tuple(weight.shape[axis] for axis in slot.axes)
        label = slot.name if weight is None else f"{weight.path}{slot.name}"
        wholes[key] = shard.FullVariable(shape, label)
    return Blueprint(model=model, weights=weights, slots=named, wholes=wholes)
