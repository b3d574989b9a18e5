"""What nodes, tensors and variables of a graph cost: operations, bytes moved, bytes kept. Pure.

Sizes of tensors are linear in the examples of a microbatch: so much for each, and so much besides.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import hardware


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """Of one node."""

    flops: float
    """Floating point operations of an example, forward."""
    tensor_bytes: float
    """Of an example: what it reads and gives."""
    weight_bytes: float
    """What it reads of weights, whatever the number of examples."""
    gradient_bytes: float
    """Of the weights that it reads, where each microbatch has to be added to those before; an
    embedding's only get longer."""
    backward: float
    """Operations backward for each one forward: one for its inputs, one for its weights."""
    inner_bytes: float
    """Of an example: what it keeps for its backward besides its inputs and outputs."""
    working_bytes: float
    """Of an example: what there is while its backward runs and not before or after it."""
    early_bytes: float = 0.0
    """Of an example: the part of `working_bytes` that its backward computes without a gradient."""
    dtype: str = "float32"
    """Of the numbers that it computes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TensorCost:
    """Of one tensor."""

    bytes: float
    """Of an example."""
    kept: bool
    """Whether a backward needs it: of the node that makes it or of one that takes it."""
    has_gradient: bool
    """Whether a gradient goes the other way."""


@dataclasses.dataclass(frozen=True, slots=True)
class VariableCosts:
    """The bytes of a variable: of its value, its gradient, the optimizer's slots."""

    parameters: int
    gradients: int
    """0 for one that is not trained."""
    slots: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of a whole model."""

    nodes: tuple[NodeCost, ...]
    tensors: tuple[TensorCost, ...]
    variables: Mapping[str, VariableCosts]
    fixed_slots: int
    """Bytes that the optimizer holds on each device besides: its step and learning rate."""
    batch_bytes: float = 0.0
    """Of an example of the data: inputs, and the labels that the loss takes."""
    copies: float = 1.0
    """As `planner.optimizer_copies` tells."""
    colocated: frozenset[tuple[int, ...]] = frozenset()
    """Positions of nodes that have to be in one stage, all of a tuple. They change the same
    variables, such as the moving statistics of a layer that is called several times."""


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """Seconds of so many examples."""

    fixed: float
    per_example: float


@dataclasses.dataclass(frozen=True, slots=True)
class NodeTime:
    """Of one node, on one device that has all of it."""

    forward: Line
    backward: Line

    @property
    def each(self) -> float:
        """Both directions for one example."""
        return self.forward.per_example + self.backward.per_example


def estimated(node: NodeCost, device: hardware.Device) -> NodeTime:
    """How long a node takes: as long as its products or its bytes, whichever is longer.

    The roofline model (Williams, Waterman, Patterson 2009), plus a cost of each call.
    """
    fixed = device.call_seconds + node.weight_bytes / device.bandwidth
    per_example = max(
        node.flops / device.flops_of(node.dtype), node.tensor_bytes / device.bandwidth
    )
    return NodeTime(
        Line(fixed, per_example), Line(node.backward * fixed, node.backward * per_example)
    )


class Sent(NamedTuple):
    """What a rank sends to its group for a microbatch."""

    messages: int = 0
    """One after the other."""
    fixed_bytes: float = 0.0
    """In all of them, whatever the number of examples."""
    example_bytes: float = 0.0
    """Of an example, in all of them."""


_NOTHING = Sent()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sharding:
    """How a rank's part of a node differs from the whole, for one replica of the model."""

    name: str = "replicated"
    compute: float = 1.0
    """Its share of the operations."""
    kept: float = 1.0
    """Its share of the output's bytes."""
    variables: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Its shares of the bytes of variables that are cut, by key."""
    forward: Sent = _NOTHING
    """Resharding of its inputs included, and for the loss that of outputs of the model."""
    backward: Sent = _NOTHING
    """The same backward."""


REPLICATED = Sharding()
"""Every rank does all of it: what a node without a rule does."""


ShardingsOf = Callable[[shape.MeshShape, int], Sequence[Sharding]]
"""Gives the sharding of each node on a mesh, for microbatches of so many examples; raises a
TrainerError if the model cannot be split so."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is planned for what."""

    model: graph.Graph
    times: Sequence[NodeTime]
    costs: Costs
    cluster: hardware.DeviceCluster
    shardings_of: ShardingsOf
    measured: bool = False
    """Whether times come from a measurement on this machine."""
    shares_slots: bool = False
    """Whether ranks along the data axis can share the optimizer's slots, and it has any."""
