"""Chooses how each node of a graph is split, and so the layout of every tensor.

A node is split as the user chose, or else by one of its rules. Among the rules that use most axes
and divide its weights, the one that communicates least is chosen. For two layers in a row, that is
a column and then a row. The choice never looks ahead. A node without a rule is replicated, on
inputs that are gathered first.
"""

import dataclasses
from collections.abc import Mapping

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import communication, elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import catalog, registry
from tfparallel_trainer.engines.split.model import graph

_USUAL_BATCH = 32
"""Examples of a microbatch, to compare costs that grow with the batch with those that do not."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one node is split."""

    node: graph.Node
    sharding: str
    """The name of its rule, or `registry.REPLICATED`."""
    split: registry.Split
    """The split, with a layout for every input and output of the node."""
    resharding: tuple[communication.Traffic, ...]
    """The cost of converting its inputs to the layouts that it needs. An input costs nothing if it
    was converted to the same layout for an earlier node."""
    why: str
    """Why it is replicated: rules failed or are missing; else empty."""

    @property
    def costs(self) -> tuple[communication.Traffic, ...]:
        """All communication of the node for each microbatch."""
        return (*self.resharding, *self.split.costs)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """How a model is split over the ranks of the spatial and tensor axes."""

    model: graph.Graph
    degrees: Mapping[shape.Axis, int]
    choices: tuple[Choice, ...]
    """In the order of the model's nodes."""
    layouts: Mapping[int, layout.Layout]
    """The layout of each tensor once it is computed; inputs of the model are replicated."""
    variables: Mapping[str, registry.Shard]
    """The layout of each variable of the model, by key."""

    def for_node(self, node: graph.Node) -> Choice:
        """The choice for a node of the model."""
        return next(choice for choice in self.choices if choice.node is node)

    def parts(self, coordinates: Mapping[shape.Axis, int]) -> dict[str, layout.Part]:
        """The part of each variable, by key, that the rank at some coordinates keeps."""
        return {key: shard.layout.part(coordinates) for key, shard in self.variables.items()}

    def check(self) -> None:
        """Refuse (BadConfigurationError) an axis with several ranks that divides nothing."""
        used = {
            axis
            for choice in self.choices
            for tensor_layout in (*choice.split.wants.values(), *choice.split.gives.values())
            for axis in tensor_layout.axes
        }
        for shard in self.variables.values():
            used |= shard.summed | shard.layout.axes
        for axis, degree in self.degrees.items():
            if degree > 1 and axis not in used:
                reasons = [choice.why for choice in self.choices if f"mesh.{axis}" in choice.why]
                reasons += [
                    f"{choice.node.name}: {choice.why}"
                    for choice in self.choices
                    if choice.why and choice.node.variables
                ]
                reason = f" ({reasons[0]})" if reasons else ""
                raise errors.BadConfigurationError(
                    f"mesh.{axis} is {degree}, but no layer of the model can be divided over it"
                    f"{reason}: give 1."
                )


def assign(model: graph.Graph, degrees: Mapping[shape.Axis, int]) -> Assignment:
    """Choose how each node is split; an impossible override is a BadConfigurationError."""
    _check_overrides(model)
    uncut: set[str] = set()
    while True:
        result = _Walk(model, degrees, frozenset(uncut)).run()
        if isinstance(result, Assignment):
            return result
        # If two nodes that read a variable need different parts of it, neither is split.
        uncut |= result


class _Walk:
    """One pass over the nodes; `_uncut` are the variables that must not be sharded."""

    def __init__(
        self, model: graph.Graph, degrees: Mapping[shape.Axis, int], uncut: frozenset[str]
    ) -> None:
        self._model = model
        self._degrees = degrees
        self._uncut = uncut
        self._layouts = {
            number: layout.whole(len(model.tensors[number].shape)) for number in model.inputs
        }
        self._brought: set[tuple[int, layout.Layout]] = set()
        self._trained = graph.with_gradient(model)
        self._variables: dict[str, registry.Shard] = {}
        self._choices: list[Choice] = []

    def run(self) -> Assignment | set[str]:
        """Choose for all nodes. If that fails, return the variables that must not be sharded."""
        for node in self._model.nodes:
            choice = self._choose(node)
            for key in node.variables:
                shard = choice.split.variables.get(key) or self._unsplit(key)
                if self._variables.setdefault(key, shard) != shard:
                    readers = [
                        choice.node for choice in self._choices if key in choice.node.variables
                    ]
                    return {read for reader in (node, *readers) for read in reader.variables}
            self._layouts |= choice.split.gives
            self._brought |= set(choice.split.wants.items())
            self._choices.append(choice)
        return Assignment(
            model=self._model,
            degrees=self._degrees,
            choices=tuple(self._choices),
            layouts=self._layouts,
            variables={
                key: self._variables.get(key) or self._unsplit(key) for key in self._model.variables
            },
        )

    def _choose(self, node: graph.Node) -> Choice:
        call = registry.Call(
            model=self._model,
            node=node,
            degrees=self._degrees,
            input_layouts={tensor: self._layouts[tensor] for tensor in node.inputs},
            trained=self._trained,
        )
        layer = getattr(node.calls, "name", "")
        overrides = self._model.sharding_overrides
        override = overrides.get(node.name, overrides.get(layer))
        if node.kind is graph.NodeKind.MASK:
            override = None
        reasons: list[str] = []
        choices: list[Choice] = []
        for sharding, rule in catalog.rules_of(node).items():
            if override != sharding and (override is not None or rule.only_asked):
                continue
            if any(call.ranks(axis) == 1 for axis in rule.axes):
                continue
            try:
                split = self._checked(node, rule.split(call))
            except registry.CannotSplitError as error:
                reasons.append(f"{error} ({sharding})")
            else:
                choices.append(self._choice(node, sharding, split))
        if override not in (None, registry.REPLICATED) and not choices:
            raise errors.BadConfigurationError(self._refusal(node, str(override), reasons))
        if choices:
            return min(choices, key=self._rank)
        asked = "this was asked for" if override == registry.REPLICATED else ""
        alone = all(call.ranks(axis) == 1 for axis in layout.AXES)
        missing = "" if alone else f"there is no rule for {type(node.calls).__name__}"
        why = asked or "; ".join(reasons) or missing
        return self._choice(node, registry.REPLICATED, registry.Split(), why)

    def _checked(self, node: graph.Node, split: registry.Split) -> registry.Split:
        """Check that variables can be sharded so, and agree with other nodes that read them."""
        for key, shard in split.variables.items():
            elementwise.check_variable(self._model.variables[key], shard.layout)
            if key in self._uncut and shard != self._unsplit(key):
                raise registry.CannotSplitError("another call needs the same weights whole")
            if self._variables.get(key, shard).layout != shard.layout:
                raise registry.CannotSplitError(
                    "an earlier call divides the same weights otherwise"
                )
        return split

    def _choice(
        self, node: graph.Node, sharding: str, split: registry.Split, why: str = ""
    ) -> Choice:
        wants = {
            number: split.wants.get(number) or self._whole_layout(number) for number in node.inputs
        }
        gives = {
            number: split.gives.get(number) or self._whole_layout(number) for number in node.outputs
        }
        bringing = [
            dataclasses.replace(traffic, rows=graph_tensor.rows_of_example)
            for tensor, tensor_layout in wants.items()
            if (tensor, tensor_layout) not in self._brought
            for graph_tensor in [self._model.tensors[tensor]]
            for traffic in communication.resharding(
                graph_tensor.shape,
                graph_tensor.dtype,
                self._layouts[tensor],
                tensor_layout,
                tensor in self._trained,
            )
        ]
        # A rule does not know the number of rows of an example in the node.
        rows = self._model.tensors[node.inputs[0]].rows_of_example if node.inputs else 1
        costs = tuple(dataclasses.replace(traffic, rows=rows) for traffic in split.costs)
        return Choice(
            node=node,
            sharding=sharding,
            split=dataclasses.replace(split, wants=wants, gives=gives, costs=costs),
            resharding=tuple(bringing),
            why=why,
        )

    def _rank(self, choice: Choice) -> tuple[int, bool, float]:
        axes = len(catalog.rules_of(choice.node)[choice.sharding].axes)
        divides = any(not shard.layout.is_whole for shard in choice.split.variables.values())
        sent = sum(
            traffic.sent(_USUAL_BATCH, self._degrees.get(traffic.axis, 1))
            for traffic in choice.costs
        )
        return -axes, not divides, sent

    def _unsplit(self, key: str) -> registry.Shard:
        return registry.Shard(layout.whole(len(self._model.variables[key].shape)))

    def _whole_layout(self, tensor: int) -> layout.Layout:
        return layout.whole(len(self._model.tensors[tensor].shape))

    def _refusal(self, node: graph.Node, override: str, reasons: list[str]) -> str:
        rules = catalog.rules_of(node)
        what = f"The layer {node.name} ({type(node.calls).__name__}) cannot be split by {override}"
        others = ", ".join(name for name in [*rules, registry.REPLICATED] if name != override)
        if reasons:
            return f"{what}: {'; '.join(reasons)}. Its other shardings are {others}."
        if override in rules:
            axes = " or ".join(f"mesh.{axis}" for axis in rules[override].axes)
            return f"{what} while {axes} is 1: give more, or one of {others}."
        return f"{what}: give one of {others}."


def _check_overrides(model: graph.Graph) -> None:
    names = {node.name for node in model.nodes}
    names |= {getattr(node.calls, "name", "") for node in model.nodes}
    for name, sharding in model.sharding_overrides.items():
        if name not in names:
            raise errors.BadConfigurationError(
                f"The model has no layer {name}, which was to be split by {sharding}: "
                f"give one of {', '.join(sorted(node.name for node in model.nodes))}."
            )
