"""How a model is split over the ranks of the spatial and tensor axes: the layout of every tensor.

It follows from the sharding of each node, which `planning.sharding_search` chooses.
"""

import dataclasses
from collections.abc import Iterable, Mapping

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import candidates, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """The split of each node, and what follows from it."""

    model: graph.Graph
    degrees: Mapping[shape.Axis, int]
    choices: tuple[candidates.Choice, ...]
    """In the order of the model's nodes."""
    layouts: Mapping[int, layout.Layout]
    """The layout of each tensor once it is computed; inputs of the model are replicated."""
    variables: Mapping[str, registry.Shard]
    """The layout of each variable of the model, by key."""

    def for_node(self, node: graph.Node) -> candidates.Choice:
        """The choice for a node of the model."""
        return next(choice for choice in self.choices if choice.node is node)

    def parts(self, coordinates: Mapping[shape.Axis, int]) -> dict[str, layout.Part]:
        """The part of each variable, by key, that the rank at some coordinates keeps."""
        return {key: shard.layout.part(coordinates) for key, shard in self.variables.items()}


def assign(
    model: graph.Graph, degrees: Mapping[shape.Axis, int], shardings: Mapping[str, str]
) -> Assignment:
    """Split a model by the sharding of each node, by its name; without one it is replicated.

    The shardings are those that a search has found for this model, whatever the order of its nodes.
    """
    of_nodes = candidates.Candidates(model, degrees)
    layouts = initial_layouts(model)
    converted: set[tuple[int, layout.Layout]] = set()
    choices = []
    for node in model.nodes:
        context = candidates.NodeContext(layouts=layouts, converted=converted, variables={})
        sharding = shardings.get(node.name, registry.REPLICATED)
        choice = of_nodes.split(node, sharding, context)
        layouts |= choice.split.gives
        converted |= set(choice.split.wants.items())
        choices.append(choice)
    return of_choices(model, degrees, choices)


def of_choices(
    model: graph.Graph, degrees: Mapping[shape.Axis, int], choices: Iterable[candidates.Choice]
) -> Assignment:
    """The assignment of choices, in the order of the model's nodes."""
    choices = tuple(choices)
    variables = {
        key: registry.Shard(layout.whole(len(variable.shape)))
        for key, variable in model.variables.items()
    }
    layouts = initial_layouts(model)
    for choice in choices:
        layouts |= choice.split.gives
        variables |= choice.variables
    return Assignment(
        model=model, degrees=degrees, choices=choices, layouts=layouts, variables=variables
    )


def initial_layouts(model: graph.Graph) -> dict[int, layout.Layout]:
    """The layouts of a model's inputs."""
    return {number: layout.whole(len(model.tensors[number].shape)) for number in model.inputs}
