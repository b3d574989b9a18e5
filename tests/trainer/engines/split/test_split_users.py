"""Rules that users give for layers of their own."""

from collections.abc import Sequence
from typing import Any

import keras
import pytest

from testing.trainer import split_group, split_traffic
from tfparallel_trainer import errors
from tfparallel_trainer import split as splitting
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import adjoint, layout

pytestmark = [
    pytest.mark.usefixtures("float64"),
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
]
TENSOR = shape.Axis.TENSOR


class Scale(keras.layers.Layer):
    """Multiplies each feature by a weight."""

    def build(self, dims: Any) -> None:
        self.factors = self.add_weight(shape=(dims[-1],), initializer="ones")

    def call(self, inputs: Any) -> Any:
        return inputs * self.factors


class Wider(Scale):
    pass


@splitting.rule(Scale)
class Features(splitting.Rule):
    """Each rank multiplies some of the features."""

    sharding = "features"
    axes = (TENSOR,)

    def split(self, call: splitting.Call) -> splitting.Split:
        cut = call.find_cut(call.first, -1, TENSOR) or call.divide(
            "features", call.dimensions(call.first)[-1], TENSOR
        )
        tensor_layout = call.whole(call.first).put(-1, cut)
        weights = splitting.Shard(layout.cut(1, 0, cut))
        return splitting.Split(
            wants={call.first: tensor_layout},
            gives={call.result: tensor_layout},
            variables={call.key(call.layer.factors): weights},
        )

    def compute(self, local: splitting.Local) -> Sequence[Any]:
        return [local.first * local.value(local.layer.factors)]


def model(layer: Any) -> Any:
    first = keras.Input((5,))
    return keras.Model(first, keras.layers.Dense(3)(layer(split_group.Source()(first))))


def test_a_custom_layer_is_split_by_its_custom_rule() -> None:
    plan = split_group.compare(lambda: model(Scale()), {TENSOR: 3})
    assert [choice.sharding for choice in plan.choices] == ["replicated", "features", "row"]


def test_a_subclass_may_compute_something_else() -> None:
    plan = split_group.compare(lambda: model(Wider()), {TENSOR: 3})
    assert plan.choices[1].sharding == "replicated"
    assert "wider is replicated: there is no rule for Wider." in split_traffic.replicated(plan)


def test_what_is_no_rule_is_refused() -> None:
    class Nameless(splitting.Rule):
        pass

    for function in (Nameless, int):
        with pytest.raises(errors.UserCodeError, match=r"is no rule .* sharding = 'units'"):
            splitting.rule(Scale)(function)
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        splitting.nothing  # noqa: B018
    assert adjoint.join_gradients([]) == []
