"""Defines rules, and registers them. Does not know any layer.

A rule has a pure part, `split`, which returns layouts and their costs. Its computing part,
`compute`, runs on each rank with the rank's parts. Users add rules for their own layers by
`tfparallel_trainer.split.rule`.
"""

import abc
import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import keras

from tfparallel_trainer import errors
from tfparallel_trainer.comms import collectives, shape
from tfparallel_trainer.engines.split.layers import communication, layout
from tfparallel_trainer.engines.split.layers.layout import Cut, Layout
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import schedule

REPLICATED = "replicated"
"""The sharding of a node that every rank computes in full."""


class CannotSplitError(Exception):
    """A rule cannot split a node; the text says why, and what to do."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """The layout of a variable."""

    layout: Layout
    summed: frozenset[shape.Axis] = frozenset()
    """Axes along which each rank has a summand of the gradient, so that ranks have to add it up
    before the optimizer's update. Along other axes, ranks with the same part have the same
    gradient."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a node is split.

    Tensors and variables that are not named are replicated, without cost.
    """

    wants: Mapping[int, Layout] = dataclasses.field(default_factory=dict)
    """Layouts of the node's inputs, which are converted to them."""
    gives: Mapping[int, Layout] = dataclasses.field(default_factory=dict)
    """Layouts of the node's outputs."""
    variables: Mapping[str, Shard] = dataclasses.field(default_factory=dict)
    """Layouts of variables, by key."""
    costs: tuple[communication.Traffic, ...] = ()
    """Communication of the rule itself, without conversions of its inputs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _OfNode:
    model: graph.Graph
    node: graph.Node

    @property
    def layer(self) -> Any:
        """The layer that the node calls."""
        return self.node.calls

    def key(self, variable: Any) -> str:
        """The key of a variable of the layer."""
        return next(key for key in self.node.variables if self.model.variables[key] is variable)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call(_OfNode):
    """The information about a node from which a rule splits it."""

    degrees: Mapping[shape.Axis, int]
    """Number of ranks along each axis that splits layers."""
    input_layouts: Mapping[int, Layout]
    """The current layouts of the node's inputs."""
    trained: frozenset[int]
    """The tensors that have a gradient."""

    @property
    def first(self) -> int:
        """The node's first input."""
        return self.node.inputs[0]

    @property
    def result(self) -> int:
        """The node's first output."""
        return self.node.outputs[0]

    def ranks(self, axis: shape.Axis) -> int:
        """Number of ranks along an axis."""
        return self.degrees.get(axis, 1)

    def dimensions(self, tensor: int) -> tuple[int | None, ...]:
        """The shape of a full tensor."""
        return self.model.tensors[tensor].shape

    def whole(self, tensor: int) -> Layout:
        """The layout of the replicated tensor."""
        return layout.whole(len(self.dimensions(tensor)))

    def find_cut(self, tensor: int, dimension: int, axis: shape.Axis) -> Cut | None:
        """The current cut of a tensor's dimension over an axis, or None; -1 is the last."""
        cut = self.input_layouts[tensor].cuts[dimension]
        return cut if cut is not None and cut.axis is axis else None

    def divide(self, what: str, size: int | None, axis: shape.Axis, unit: int = 1) -> Cut:
        """Divide rows over the ranks of an axis as evenly as possible.

        `what` names them for people ("units"). Each `unit` consecutive rows stay together. Too few
        rows are a CannotSplitError.
        """
        ranks = self.ranks(axis)
        if size is None or size // unit < ranks:
            have = "an unknown number of" if size is None else size // unit
            raise CannotSplitError(
                f"it has {have} {what}, and mesh.{axis} is {ranks}: let there be at least as many "
                f"{what} as ranks, or replicate the layer"
            )
        return layout.even(axis, size, ranks, unit)

    def split(
        self,
        takes: Layout | None = None,
        gives: Layout | None = None,
        variables: Mapping[str, Shard] | None = None,
        costs: Iterable[communication.Traffic] = (),
    ) -> Split:
        """How the node is split, from layouts of its first input and output; absent: whole."""
        return Split(
            wants={} if takes is None else {self.first: takes},
            gives={} if gives is None else {self.result: gives},
            variables=variables or {},
            costs=tuple(costs),
        )

    def shards(
        self, *pairs: tuple[Any, Layout], summed: frozenset[shape.Axis] = frozenset()
    ) -> dict[str, Shard]:
        """Layouts of the layer's variables, by key; the layer lacks those that are None."""
        return {
            self.key(weight): Shard(tensor_layout, summed)
            for weight, tensor_layout in pairs
            if weight is not None
        }

    def unsharded(self, summed: frozenset[shape.Axis]) -> dict[str, Shard]:
        """All variables that the node reads, replicated."""
        variables = self.model.variables
        return {
            key: Shard(layout.whole(len(variables[key].shape)), summed)
            for key in self.node.variables
        }

    def backward(self, tensor: int) -> tuple[schedule.Pass, ...]:
        """The kind of work that computes the gradient of a tensor, if it has one."""
        return (schedule.Pass.BACKWARD,) if tensor in self.trained else ()

    def sends(
        self,
        kind: communication.CollectiveKind,
        axis: shape.Axis,
        works: Iterable[schedule.Pass],
        dims: Iterable[int | None],
        dtype: str | None = None,
    ) -> tuple[communication.Traffic, ...]:
        """The messages of ranks along an axis, by kind of work: a tensor of a shape and type."""
        brought = dtype or self.layer.compute_dtype
        return tuple(
            communication.Traffic(
                kind=kind,
                axis=axis,
                work=work,
                shape=tuple(dims),
                dtype=brought
                if kind is communication.CollectiveKind.SUM
                else communication.carried(brought),
            )
            for work in works
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Local(_OfNode):
    """The computation of a node on one rank, with the rank's parts of tensors and variables."""

    split: Split
    training: bool
    same_dropout: bool
    """Whether random layers draw as the unsplit layer would (for tests; it costs time)."""
    groups: Mapping[shape.Axis, collectives.Communicator]
    tensors: Mapping[int, Any]
    """Inputs of the node, by number, in the layouts of the rule."""
    variables: Mapping[str, Any]
    """The rank's parts of the variables that the node reads, by key."""
    changed: dict[str, Any]
    """A rule puts the new parts of variables that the call changes here, by key."""

    def place(self) -> dict[shape.Axis, int]:
        """The coordinates of this rank along the axes that split layers."""
        return {axis: group.index for axis, group in self.groups.items()}

    def tensor(self, number: int) -> Any:
        """An input of the node, cast to the type in which the layer computes."""
        tensor = self.tensors[number]
        if tensor is None or self.node.kind is not graph.NodeKind.LAYER:
            return tensor
        if self.layer.autocast and self.model.tensors[number].is_real:
            return keras.ops.cast(tensor, self.layer.compute_dtype)
        return tensor

    @property
    def first(self) -> Any:
        """The node's first input."""
        return self.tensor(self.node.inputs[0])

    def value(self, variable: Any) -> Any:
        """This rank's part of a layer's variable, cast to the type in which the layer computes."""
        value = self.variables[self.key(variable)]
        if self.layer.autocast and "float" in variable.dtype:
            return keras.ops.cast(value, self.layer.compute_dtype)
        return value


class Rule(abc.ABC):
    """One sharding of one kind of layer or operation."""

    sharding: str
    """Its name, by which users choose it, such as column."""
    axes: tuple[shape.Axis, ...] = ()
    """The rule applies only if each of these axes has several ranks."""
    only_asked: bool = False
    """Whether it applies only if the user chooses it."""

    @abc.abstractmethod
    def split(self, call: Call) -> Split:
        """Return how a node is split, or raise a CannotSplitError. Pure: the same on every rank."""

    @abc.abstractmethod
    def compute(self, local: Local) -> Sequence[Any]:
        """Compute this rank's parts of the node's outputs, with gradients.

        All ranks of a group make the same calls of its communicator in the same order. Gradients
        follow the rule of `split.layers.adjoint`.
        """


Rules = Mapping[str, tuple[Rule, ...]]
"""By names of layers, as `operations.layers` takes them, in the order of preference."""

_user_rules: dict[type, dict[str, Rule]] = {}
"""The rules of users, by layer and sharding."""

_RuleType = TypeVar("_RuleType", bound=type[Rule])


def rule(*layers: type) -> Callable[[_RuleType], _RuleType]:
    """Register a class as a rule for these classes of layers, and not for their subclasses.

    Rules of one layer are tried in the order of their registration, before those built in. A class
    that is not a rule, or has no name, is a UserCodeError.
    """

    def register(rule_class: _RuleType) -> _RuleType:
        if not issubclass(rule_class, Rule) or not hasattr(rule_class, "sharding"):
            raise errors.UserCodeError(
                f"{rule_class!r} is no rule for splitting a layer: derive a class from "
                "tfparallel_trainer.split.Rule and give it a name, such as sharding = 'units'."
            )
        for layer in layers:
            _user_rules.setdefault(layer, {})[rule_class.sharding] = rule_class()
        return rule_class

    return register


def of_users(kind: type) -> Mapping[str, Rule]:
    """The users' rules for a class of layers, by sharding."""
    return _user_rules.get(kind, {})
