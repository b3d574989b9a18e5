"""What a rule is, and which rules there are for a node. Knows no layer.

A rule has a pure part, `split`, which says how things lie and what that costs. Its computing part,
`compute`, runs on each rank with its parts. Users add rules for their own layers by
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
    """A rule cannot split a node; the text says why, and what would help."""


@dataclasses.dataclass(frozen=True, slots=True)
class Shard:
    """How a variable lies."""

    layout: Layout
    summed: frozenset[shape.Axis] = frozenset()
    """Axes along which each rank has a part of the gradient, so that it must be added up before
    the optimizer gets it. Elsewhere ranks with the same part have the same gradient."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Split:
    """How a node is split: what is not named is whole, and costs nothing."""

    wants: Mapping[int, Layout] = dataclasses.field(default_factory=dict)
    """For tensors that the node takes; they are brought into these layouts."""
    gives: Mapping[int, Layout] = dataclasses.field(default_factory=dict)
    """For tensors that the node makes."""
    variables: Mapping[str, Shard] = dataclasses.field(default_factory=dict)
    """By key."""
    costs: tuple[communication.Traffic, ...] = ()
    """What the rule itself communicates, besides bringing tensors into the layouts it wants."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _OfNode:
    model: graph.Graph
    node: graph.Node

    @property
    def layer(self) -> Any:
        """What the node calls."""
        return self.node.calls

    def key(self, variable: Any) -> str:
        """The key of a variable of the layer."""
        return next(key for key in self.node.variables if self.model.variables[key] is variable)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Call(_OfNode):
    """What a rule is told about a node."""

    degrees: Mapping[shape.Axis, int]
    """Number of ranks along each axis that splits layers."""
    input_layouts: Mapping[int, Layout]
    """How the tensors that the node takes lie now."""
    trained: frozenset[int]
    """The tensors that a gradient goes back through."""

    @property
    def first(self) -> int:
        """The first tensor that the node takes."""
        return self.node.inputs[0]

    @property
    def result(self) -> int:
        """The first tensor that the node makes."""
        return self.node.outputs[0]

    def ranks(self, axis: shape.Axis) -> int:
        """Number of ranks along an axis."""
        return self.degrees.get(axis, 1)

    def dimensions(self, tensor: int) -> tuple[int | None, ...]:
        """The shape of a whole tensor."""
        return self.model.tensors[tensor].shape

    def whole(self, tensor: int) -> Layout:
        """The layout in which a tensor is whole."""
        return layout.whole(len(self.dimensions(tensor)))

    def find_cut(self, tensor: int, dimension: int, axis: shape.Axis) -> Cut | None:
        """The cut over an axis with which a dimension of a tensor comes; -1 is the last one."""
        cut = self.input_layouts[tensor].cuts[dimension]
        return cut if cut is not None and cut.axis is axis else None

    def divide(self, what: str, size: int | None, axis: shape.Axis, unit: int = 1) -> Cut:
        """Divide rows, named for people ("units"), over the ranks of an axis as evenly as can be.

        Of `unit` rows that follow each other, one rank has all. Too few are a CannotSplitError.
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
        """How the node is split when its first input and its first output lie so; absent: whole."""
        return Split(
            wants={} if takes is None else {self.first: takes},
            gives={} if gives is None else {self.result: gives},
            variables=variables or {},
            costs=tuple(costs),
        )

    def shards(
        self, *pairs: tuple[Any, Layout], summed: frozenset[shape.Axis] = frozenset()
    ) -> dict[str, Shard]:
        """How variables of the layer lie, by key; None is one that it is without."""
        return {
            self.key(weight): Shard(tensor_layout, summed)
            for weight, tensor_layout in pairs
            if weight is not None
        }

    def unsharded(self, summed: frozenset[shape.Axis]) -> dict[str, Shard]:
        """All variables that the node reads, whole on each rank."""
        variables = self.model.variables
        return {
            key: Shard(layout.whole(len(variables[key].shape)), summed)
            for key in self.node.variables
        }

    def backward(self, tensor: int) -> tuple[schedule.Pass, ...]:
        """The work in which the gradient of a tensor goes back, if it has one."""
        return (schedule.Pass.BACKWARD,) if tensor in self.trained else ()

    def sends(
        self,
        kind: communication.CollectiveKind,
        axis: shape.Axis,
        works: Iterable[schedule.Pass],
        dims: Iterable[int | None],
        dtype: str | None = None,
    ) -> tuple[communication.Traffic, ...]:
        """What ranks along an axis send for each work: a tensor of these sizes, in a type."""
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
    """One rank's turn to compute a node; tensors and variables are its own parts."""

    split: Split
    training: bool
    same_dropout: bool
    """Whether random layers shall draw what the whole layer would (for tests; it costs time)."""
    groups: Mapping[shape.Axis, collectives.Communicator]
    tensors: Mapping[int, Any]
    """What the node takes, by number, in the layouts that the rule wants."""
    variables: Mapping[str, Any]
    """The rank's parts of the variables that the node reads, by key."""
    changed: dict[str, Any]
    """A rule puts the new parts of variables that the call changes here, by key."""

    def place(self) -> dict[shape.Axis, int]:
        """Where this rank stands along the axes that split layers."""
        return {axis: group.index for axis, group in self.groups.items()}

    def tensor(self, number: int) -> Any:
        """A tensor that the node takes, of the type in which the layer computes."""
        tensor = self.tensors[number]
        if tensor is None or self.node.kind is not graph.NodeKind.LAYER:
            return tensor
        if self.layer.autocast and self.model.tensors[number].is_real:
            return keras.ops.cast(tensor, self.layer.compute_dtype)
        return tensor

    @property
    def first(self) -> Any:
        """The first tensor that the node takes."""
        return self.tensor(self.node.inputs[0])

    def value(self, variable: Any) -> Any:
        """This rank's part of a variable of the layer, of the type in which the layer computes."""
        value = self.variables[self.key(variable)]
        if self.layer.autocast and "float" in variable.dtype:
            return keras.ops.cast(value, self.layer.compute_dtype)
        return value


class Rule(abc.ABC):
    """One sharding of one kind of layer or operation."""

    sharding: str
    """Its name, by which people ask for it, such as column."""
    axes: tuple[shape.Axis, ...] = ()
    """It is of use only when each of these axes has several ranks."""
    only_asked: bool = False
    """Whether it is taken only when someone asks for it."""

    @abc.abstractmethod
    def split(self, call: Call) -> Split:
        """Say how a node is split, or raise a CannotSplitError. Pure: the same on every rank."""

    @abc.abstractmethod
    def compute(self, local: Local) -> Sequence[Any]:
        """Compute this rank's parts of what the node makes, with gradients.

        All ranks of a group make the same calls of its communicator in the same order. Gradients
        follow the rule of `split.layers.adjoint`.
        """


Rules = Mapping[str, tuple[Rule, ...]]
"""By names of layers, as `operations.layers` takes them, in the order of preference."""

_user_rules: dict[type, dict[str, Rule]] = {}
"""The rules of users, by layer and sharding."""

_RuleType = TypeVar("_RuleType", bound=type[Rule])


def rule(*layers: type) -> Callable[[_RuleType], _RuleType]:
    """Say that a class is a rule for these classes of layers, and not for their subclasses.

    Rules of one layer are tried in the order of their registration, before those built in. What
    is no rule, or has no name, is a UserCodeError.
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
    """The rules that users have given for a class of layers, by sharding."""
    return _user_rules.get(kind, {})
