"""The shardings of a model: the cheapest of all in small models, and never dearer than greedy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import keras
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from testing import repeats
from testing.trainer import cases_models, planned_models, split_models
from tfparallel_trainer import errors, user
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, candidates, layout
from tfparallel_trainer.engines.split.layers.candidates import Choice
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph, recording, skeleton
from tfparallel_trainer.engines.split.planning import (
    costs,
    hardware,
    model_costs,
    sharding_search,
    shardings,
)
from tfparallel_trainer.objective import replica

pytestmark = [
    pytest.mark.filterwarnings("ignore:__array__:DeprecationWarning"),  # within Keras
    pytest.mark.filterwarnings("ignore:Layer .* was passed an input with a mask:UserWarning"),
]
SPATIAL, TENSOR = shape.Axis.SPATIAL, shape.Axis.TENSOR
LAYERS = keras.layers
DEGREES = (
    {SPATIAL: 1, TENSOR: 2},
    {SPATIAL: 1, TENSOR: 4},
    {SPATIAL: 2, TENSOR: 1},
    {SPATIAL: 2, TENSOR: 2},
)
LINKS = {
    "pods": hardware.DeviceCluster().across,
    "one pod": hardware.DeviceCluster().inside,
    "NVLink": hardware.Link(2.4e11, 2e-5),
}
EXAMPLES = (1, 32, 1024)
_LENGTH = 16
"""For dimensions that only the data would tell."""


class Walk:
    """Chooses for one node after the other, and can go back."""

    def __init__(self, model: graph.Graph, degrees: Mapping[shape.Axis, int]) -> None:
        self.choices: list[Choice] = []
        self._nodes = model.nodes
        self._candidates = candidates.Candidates(model, degrees)
        self._layouts = assignment.initial_layouts(model)
        self._converted: dict[tuple[int, layout.Layout], int] = {}
        self._shards: dict[str, list[registry.Shard]] = {}

    def options(self) -> list[Choice]:
        """Those of the next node that agree with earlier ones on the variables of several."""
        shards = {key: stack[-1] for key, stack in self._shards.items() if stack}
        context = candidates.NodeContext(
            layouts=self._layouts,
            converted={pair for pair, count in self._converted.items() if count},
            variables=shards,
        )
        return [
            choice
            for choice in self._candidates.find(self._nodes[len(self.choices)], context)
            if all(shards.get(key, shard) == shard for key, shard in choice.variables.items())
        ]

    def take(self, choice: Choice) -> None:
        """Go on with a choice for the next node."""
        self.choices.append(choice)
        self._layouts |= choice.split.gives
        for pair in choice.split.wants.items():
            self._converted[pair] = self._converted.get(pair, 0) + 1
        for key, shard in choice.variables.items():
            self._shards.setdefault(key, []).append(shard)

    def go_back(self) -> None:
        """Forget the last choice."""
        choice = self.choices.pop()
        for pair in choice.split.wants.items():
            self._converted[pair] -= 1
        for key in choice.variables:
            self._shards[key].pop()

    def all_ways(self) -> Iterator[Sequence[Choice]]:
        """Every sequence of choices through all nodes."""
        if len(self.choices) == len(self._nodes):
            yield self.choices
            return
        for choice in self.options():
            self.take(choice)
            yield from self.all_ways()
            self.go_back()


def greedy(model: graph.Graph, degrees: Mapping[shape.Axis, int]) -> Sequence[Choice] | None:
    """Let each node send least; None if two need different parts of a variable, or one cannot be
    split."""

    def sent(choice: Choice) -> float:
        return sum(cost.sent(32, degrees[cost.axis]) for cost in choice.costs)

    walk = Walk(model, degrees)
    try:
        for _ in model.nodes:
            walk.take(min(walk.options(), key=sent))
    except (errors.BadConfigurationError, ValueError):
        return None
    return walk.choices


def price_of(
    model: graph.Graph, degrees: Mapping[shape.Axis, int], link: hardware.Link
) -> sharding_search.Price:
    node_costs = model_costs.estimate_costs(model, {}, length=_LENGTH).nodes
    times = [costs.estimated(node, hardware.Device()) for node in node_costs]
    return shardings.pricing(model, degrees, times, link)


def seconds_of(choices: Sequence[Choice], price: sharding_search.Price, examples: int) -> float:
    lines = [price(choice) for choice in choices]
    return sum(line.fixed + examples * line.per_example for line in lines)


def cheapest(paths: Sequence[sharding_search.Path], examples: int) -> sharding_search.Path:
    return min(paths, key=lambda path: path.seconds(examples))


def compare_with_greedy(model: graph.Graph) -> int:
    """See that no path is dearer than the greedy one; returns how many meshes were compared."""
    compared = 0
    for degrees in DEGREES:
        choices = greedy(model, degrees)
        if choices is None:
            continue
        for link in LINKS.values():
            price = price_of(model, degrees, link)
            paths = sharding_search.search(model, degrees, price)
            for examples in EXAMPLES:
                path = cheapest(paths, examples)
                seconds = path.seconds(examples)
                assert seconds == pytest.approx(seconds_of(path.choices(), price, examples))
                assert seconds <= seconds_of(choices, price, examples) * (1 + 1e-9)
        compared += 1
    return compared


@pytest.mark.parametrize("name", repeats.some(cases_models.MODELS, ("llama", "resnet", "unet")))
def test_no_public_model_is_dearer_than_by_the_greedy_choice(name: str) -> None:
    replica.forget_names()
    module = user.load(cases_models.FOLDER, f"{name}.py")
    try:
        model = skeleton.recorded(module, skeleton.build(module, 0))
    except errors.UserCodeError:
        pytest.skip("it is not built of layers that can be divided")
    assert compare_with_greedy(model)


@pytest.mark.parametrize("name", repeats.some(planned_models.REAL, ("MobileNetV2", "decoder")))
def test_no_large_model_is_dearer_than_by_the_greedy_choice(name: str) -> None:
    model = recording.record(split_models.bare(planned_models.REAL[name]))
    assert compare_with_greedy(model) == len(DEGREES)


def chain(layers: Sequence[str]) -> Callable[[], Any]:
    """A model of layers in a row; + adds the tensor before the last two layers."""

    def build() -> Any:
        first = tensor = keras.Input((6,))
        earlier = [tensor]
        shared = LAYERS.Dense(6)
        for layer in layers:
            tensor = {
                "dense": lambda x: LAYERS.Dense(6, activation="relu")(x),
                "softmax": lambda x: LAYERS.Dense(6, activation="softmax")(x),
                "normal": lambda x: LAYERS.LayerNormalization()(x),
                "dropout": lambda x: LAYERS.Dropout(0.5)(x),
                "shared": shared,
                "add": lambda x: LAYERS.Add()([x, earlier[-2:][0]]),
            }[layer](tensor)
            earlier.append(tensor)
        return keras.Model(first, tensor)

    return build


@settings(
    max_examples=settings().max_examples // 4,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
@given(
    layers=st.lists(
        st.sampled_from(["dense", "softmax", "normal", "dropout", "shared", "add"]),
        min_size=1,
        max_size=7,
    ),
    ranks=st.sampled_from([2, 3]),
    bandwidth=st.floats(1e3, 1e9),
    latency=st.floats(0.0, 1e-3),
    examples=st.sampled_from([1, 7, 500]),
)
def test_small_models_are_split_as_the_best_of_all_ways(
    layers: list[str], ranks: int, bandwidth: float, latency: float, examples: int
) -> None:
    model = recording.record(split_models.bare(chain(["dense", *layers])))
    degrees = {SPATIAL: 1, TENSOR: ranks}
    price = price_of(model, degrees, hardware.Link(bandwidth, latency))
    all_ways = [seconds_of(choices, price, examples) for choices in Walk(model, degrees).all_ways()]
    path = cheapest(sharding_search.search(model, degrees, price), examples)
    assert path.seconds(examples) == pytest.approx(min(all_ways))


def test_the_shardings_by_name_split_a_model_alike_whatever_the_order_of_its_nodes() -> None:
    model = recording.record(split_models.bare(planned_models.decoder))
    degrees = {SPATIAL: 1, TENSOR: 2}
    price = price_of(model, degrees, LINKS["pods"])
    choices = cheapest(sharding_search.search(model, degrees, price), 32).choices()
    expected = assignment.of_choices(model, degrees, choices)
    names = {choice.node.name: choice.sharding for choice in choices}
    divided = assignment.assign(model, degrees, names)
    assert divided.layouts == expected.layouts
    assert divided.variables == expected.variables
    assert [choice.split for choice in divided.choices] == [choice.split for choice in choices]
    assert any(not shard.layout.is_whole for shard in divided.variables.values())
