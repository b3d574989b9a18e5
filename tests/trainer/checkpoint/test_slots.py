"""Which weight a variable of an optimizer belongs to."""

from typing import Any

import keras
import numpy as np
import pytest

from tfparallel_trainer import errors
from tfparallel_trainer.checkpoint import keys, shard, slots

OPTIMIZERS = keras.optimizers
BUILDERS = {
    "SGD": lambda: OPTIMIZERS.SGD(momentum=0.9, use_ema=True, gradient_accumulation_steps=2),
    "Adam": lambda: OPTIMIZERS.Adam(amsgrad=True),
    "AdamW": OPTIMIZERS.AdamW,
    "Nadam": OPTIMIZERS.Nadam,
    "Adamax": OPTIMIZERS.Adamax,
    "Adagrad": OPTIMIZERS.Adagrad,
    "Adadelta": OPTIMIZERS.Adadelta,
    "RMSprop": lambda: OPTIMIZERS.RMSprop(momentum=0.9, centered=True),
    "Ftrl": OPTIMIZERS.Ftrl,
    "Lion": OPTIMIZERS.Lion,
    "Lamb": OPTIMIZERS.Lamb,
    "Muon": OPTIMIZERS.Muon,
    "Adafactor": OPTIMIZERS.Adafactor,
    "ScheduleFreeAdamW": OPTIMIZERS.ScheduleFreeAdamW,
    "LossScaleOptimizer": lambda: OPTIMIZERS.LossScaleOptimizer(OPTIMIZERS.Adam()),
}


def weights() -> dict[str, Any]:
    """Two of them have one path, which Keras allows."""
    shapes = {"model/0/0": (4, 6), "model/0/1": (6,), "model/1/0": (4, 6), "model/2/0": (8, 2, 4)}
    variables = {}
    for key, shape in shapes.items():
        with keras.name_scope("dense"):
            variables[key] = keras.Variable(np.zeros(shape), name=f"of_{len(shape)}_axes")
    return variables


@pytest.mark.parametrize("name", BUILDERS)
def test_each_slot_has_the_shape_that_its_weight_and_axes_say(name: str) -> None:
    optimizer, model_weights = BUILDERS[name](), weights()
    optimizer_slots = slots.find_slots(optimizer, model_weights)
    optimizer.build(list(model_weights.values()))
    assert len(optimizer_slots) == len(optimizer.variables)
    for slot, variable in zip(optimizer_slots, optimizer.variables, strict=True):
        of_weight = () if slot.weight is None else model_weights[slot.weight].shape
        assert tuple(of_weight[axis] for axis in slot.axes) == tuple(variable.shape)
    assert {slot.weight for slot in optimizer_slots} >= set(model_weights)
    assert len(set(optimizer_slots)) == len(keys.for_training(keras.Sequential([]), optimizer))


@pytest.mark.parametrize("name", BUILDERS)
def test_an_optimizer_of_some_weights_has_the_slots_of_the_whole_ones(name: str) -> None:
    model_weights = weights()
    optimizer = BUILDERS[name]()
    whole = type(optimizer).from_config(optimizer.get_config())
    whole.build(list(model_weights.values()))
    named = slots.keys_of(slots.find_slots(whole, model_weights))
    some = {
        key: shard.VariableShard(
            variable=keras.Variable(np.zeros((2, *model_weights[key].shape[1:])), name="half"),
            whole=shard.FullVariable(tuple(model_weights[key].shape), key),
            part=(slice(2, 4),),
        )
        for key in ("model/2/0", "model/0/1", "model/1/0")
    }
    optimizer.build([slot.variable for slot in some.values()])
    optimizer_slots = slots.shards(optimizer, some, named, writes_counters=False)
    assert len(optimizer_slots) == len({id(variable) for variable in optimizer.variables})
    for key, slot in optimizer_slots.items():
        there = whole.variables[int(key.removeprefix("optimizer/"))]
        assert slot.whole.shape == tuple(there.shape)
        assert slot.box.shape == tuple(slot.variable.shape)
    counters = [
        slot for slot in optimizer_slots.values() if slot.variable.path.endswith("iteration")
    ]
    assert counters
    assert not any(slot.writes for slot in counters)


def test_an_optimizer_that_does_not_show_its_slots_is_refused() -> None:
    class HiddenSlots(keras.optimizers.SGD):
        def build(self, variables: Any) -> None:
            super().build(variables)
            for variable in variables:
                self.add_variable((4, *variable.shape), name=f"{variable.name}_history")

    with pytest.raises(errors.UserCodeError, match="HiddenSlots cannot train a divided model"):
        slots.find_slots(HiddenSlots(), weights())
