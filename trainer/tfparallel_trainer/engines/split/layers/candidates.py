"""The shardings that a node may have where its inputs have some layouts.

A node is split as the user chose, or else by one of its rules. These are the rules that use most
axes and, if any of them does, divide its weights. A node to which no rule applies is replicated, on
inputs that are gathered first.
"""

import dataclasses
from collections.abc import Collection, Mapping

from tfparallel_trainer import errors
from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import communication, elementwise, layout
from tfparallel_trainer.engines.split.layers.rules import catalog, registry
from tfparallel_trainer.engines.split.model import graph


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """How one node is split."""

    node: graph.Node
    sharding: str
    """The name of its rule, or `registry.REPLICATED`."""
    split: registry.Split
    """The split, with a layout for every input and output of the node."""
    variables: Mapping[str, registry.Shard]
    """The layout of every variable that it reads, by key."""
    resharding: tuple[communication.Traffic, ...]
    """The cost of converting its inputs to the layouts that it needs. An input costs nothing if it
    was converted to the same layout for an earlier node."""
    for_loss: tuple[communication.Traffic, ...]
    """The cost of converting those of its outputs that are outputs of the model, for the loss."""
    why: str
    """Why it is replicated: rules failed or are missing; else empty."""

    @property
    def costs(self) -> tuple[communication.Traffic, ...]:
        """All communication of the node for each microbatch, but for that of the loss."""
        return (*self.resharding, *self.split.costs)

    @property
    def divides_weights(self) -> bool:
        """Whether it divides a variable of the node."""
        return any(not shard.layout.is_whole for shard in self.variables.values())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeContext:
    """What the choices of earlier nodes have settled."""

    layouts: Mapping[int, layout.Layout]
    """Of each tensor that there is."""
    converted: Collection[tuple[int, layout.Layout]]
    """The tensors that earlier nodes took, in the layouts in which they took them."""
    variables: Mapping[str, registry.Shard]
    """Of each variable that earlier nodes read, by key."""


class Candidates:
    """Of the nodes of a model on one mesh."""

    def __init__(
        self,
        model: graph.Graph,
        degrees: Mapping[shape.Axis, int],
        uncut: Collection[str] = (),
    ) -> None:
        """Take the variables that must not be divided; an unknown layer is refused."""
        self._model = model
        self._degrees = degrees
        self._uncut = uncut
        self._trained = graph.with_gradient(model)
        self._outputs = frozenset(model.output_tensors())
        _check_overrides(model)

    def find(self, node: graph.Node, context: NodeContext) -> list[Choice]:
        """All of them, in the order of preference; an impossible override is refused.

        Raises:
            BadConfigurationError: the node cannot be split as the user chose.
        """
        call = self._call(node, context)
        override = self._override(node)
        reasons: list[str] = []
        choices: dict[tuple[int, bool], list[Choice]] = {}
        for sharding, rule in catalog.rules_of(node).items():
            if override != sharding and (override is not None or rule.only_asked):
                continue
            if any(call.ranks(axis) == 1 for axis in rule.axes):
                continue
            try:
                split = self._checked(rule.split(call), context)
            except registry.CannotSplitError as error:
                reasons.append(f"{error} ({sharding})")
            else:
                choice = self._choice(node, sharding, split, context)
                order = -len(rule.axes), not choice.divides_weights
                choices.setdefault(order, []).append(choice)
        if override not in (None, registry.REPLICATED) and not choices:
            raise errors.BadConfigurationError(self._refusal(node, str(override), reasons))
        if choices:
            return choices[min(choices)]
        asked = "this was asked for" if override == registry.REPLICATED else ""
        alone = all(call.ranks(axis) == 1 for axis in layout.AXES)
        missing = "" if alone else f"there is no rule for {type(node.calls).__name__}"
        return [self.replicate(node, context, asked or "; ".join(reasons) or missing)]

    def split(self, node: graph.Node, sharding: str, context: NodeContext) -> Choice:
        """The choice of a sharding that `find` has found in the same context."""
        if sharding == registry.REPLICATED:
            return self.replicate(node, context)
        rule = catalog.rules_of(node)[sharding]
        return self._choice(node, sharding, rule.split(self._call(node, context)), context)

    def replicate(self, node: graph.Node, context: NodeContext, why: str = "") -> Choice:
        """Let all ranks compute all of a node."""
        return self._choice(node, registry.REPLICATED, registry.Split(), context, why)

    def _call(self, node: graph.Node, context: NodeContext) -> registry.Call:
        return registry.Call(
            model=self._model,
            node=node,
            degrees=self._degrees,
            input_layouts={tensor: context.layouts[tensor] for tensor in node.inputs},
            trained=self._trained,
        )

    def _override(self, node: graph.Node) -> str | None:
        """The sharding that the user chose for a node."""
        if node.kind is graph.NodeKind.MASK:
            return None
        overrides = self._model.sharding_overrides
        return overrides.get(node.name, overrides.get(getattr(node.calls, "name", "")))

    def _checked(self, split: registry.Split, context: NodeContext) -> registry.Split:
        """Check that variables can be sharded so, and agree with other nodes that read them."""
        for key, shard in split.variables.items():
            elementwise.check_variable(self._model.variables[key], shard.layout)
            if key in self._uncut and shard != self._unsplit(key):
                raise registry.CannotSplitError("another call needs the same weights whole")
            if context.variables.get(key, shard).layout != shard.layout:
                raise registry.CannotSplitError(
                    "an earlier call divides the same weights otherwise"
                )
        return split

    def _choice(
        self,
        node: graph.Node,
        sharding: str,
        split: registry.Split,
        context: NodeContext,
        why: str = "",
    ) -> Choice:
        wants = {
            number: split.wants.get(number) or self._whole_layout(number) for number in node.inputs
        }
        gives = {
            number: split.gives.get(number) or self._whole_layout(number) for number in node.outputs
        }
        resharding = [
            traffic
            for tensor, target in wants.items()
            if (tensor, target) not in context.converted
            for traffic in self._resharding(tensor, context.layouts[tensor], target)
        ]
        for_loss = [
            traffic
            for tensor in self._outputs.intersection(node.outputs)
            for traffic in self._for_loss(tensor, gives[tensor])
        ]
        # A rule does not know the number of rows of an example in the node.
        rows = self._model.tensors[node.inputs[0]].rows_of_example if node.inputs else 1
        costs = tuple(dataclasses.replace(traffic, rows=rows) for traffic in split.costs)
        return Choice(
            node=node,
            sharding=sharding,
            split=dataclasses.replace(split, wants=wants, gives=gives, costs=costs),
            variables={
                key: split.variables.get(key) or self._unsplit(key) for key in node.variables
            },
            resharding=tuple(resharding),
            for_loss=tuple(for_loss),
            why=why,
        )

    def _resharding(
        self, number: int, before: layout.Layout, after: layout.Layout
    ) -> list[communication.Traffic]:
        """The cost of converting a tensor from one layout to another."""
        tensor = self._model.tensors[number]
        return [
            dataclasses.replace(traffic, rows=tensor.rows_of_example)
            for traffic in communication.resharding(
                tensor.shape, tensor.dtype, before, after, number in self._trained
            )
        ]

    def _for_loss(self, number: int, before: layout.Layout) -> list[communication.Traffic]:
        """The cost of converting an output for one of Keras' own losses."""
        tensor = self._model.tensors[number]
        axes = [axis for axis in layout.AXES if self._degrees.get(axis, 1) > 1]
        if before.is_whole or len(axes) > 1 or (tensor.batch, tensor.rows) != (0, 1):
            return self._resharding(number, before, self._whole_layout(number))
        return list(
            communication.to_examples(
                tensor.shape, tensor.dtype, before, axes[0], number in self._trained
            )
        )

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
