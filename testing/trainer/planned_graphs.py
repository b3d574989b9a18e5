"""Graphs for the planner without layers."""

import dataclasses
from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.planning import blocks, cost_tables, costs, hardware

CLUSTER = hardware.DeviceCluster(processes=8, across=hardware.Link(100.0, 0.01))


@dataclasses.dataclass(frozen=True, slots=True)
class Variable:
    """What the planner looks at."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    trainable: bool = True


class Step:
    """What a node calls."""


def build_graph(
    before: Sequence[Sequence[int]], weights: Mapping[str, Sequence[int]]
) -> graph.Graph:
    """A graph whose nodes take what some nodes before them make.

    Args:
        before: of each node the nodes whose tensor it takes; one without takes the input.
        weights: of each variable, of 4 elements, the nodes that read it.
    """
    nodes = tuple(
        graph.Node(
            kind=graph.NodeKind.OPERATION,
            name=f"node{node}",
            calls=Step(),
            arguments=(),
            keywords={},
            masks={},
            inputs=tuple(node_index + 1 for node_index in inputs) or (0,),
            outputs=(node + 1,),
            variables=tuple(key for key, readers in weights.items() if node in readers),
        )
        for node, inputs in enumerate(before)
    )
    return graph.Graph(
        nodes=nodes,
        tensors=(graph.Tensor((None, 1), "float32"),) * (len(before) + 1),
        input_names=("input",),
        outputs=(graph.Output("output", len(before), None),),
        input_structure=None,
        output_structure=None,
        variables={key: Variable((4,)) for key in weights},
    )


def chain(count: int) -> list[list[int]]:
    return [[], *([node] for node in range(count - 1))]


@st.composite
def branched(draw: st.DrawFn, most: int = 8) -> list[list[int]]:
    """Each node takes from one or two of the few nodes before it."""
    count = draw(st.integers(2, most))
    inputs_of_nodes: list[list[int]] = [[]]
    for node in range(1, count):
        near = st.integers(max(0, node - 3), node - 1)
        inputs_of_nodes.append(sorted(draw(st.sets(near, min_size=1, max_size=2))))
    return inputs_of_nodes


def costs_of(model: graph.Graph, sizes: Sequence[float], gradients: bool = True) -> costs.Costs:
    """Tensors of so many bytes."""
    tensors = [costs.TensorCost(bytes=size, kept=True, has_gradient=gradients) for size in sizes]
    node = costs.NodeCost(
        flops=1.0,
        tensor_bytes=1.0,
        weight_bytes=1.0,
        backward=2.0,
        inner_bytes=0.0,
        working_bytes=1.0,
        gradient_bytes=0.0,
    )
    return costs.Costs(
        nodes=(node,) * len(model.nodes),
        tensors=(costs.TensorCost(bytes=1.0, kept=False, has_gradient=False), *tensors),
        variables={key: costs.VariableCosts(16, 16, 32) for key in model.variables},
        fixed_slots=0,
    )


def subject(
    model: graph.Graph,
    sizes: Sequence[float],
    seconds: Sequence[float],
    cluster: hardware.DeviceCluster = CLUSTER,
) -> costs.Subject:
    """Tensors of so many bytes, and nodes that take so long forward, and twice as long backward."""
    return costs.Subject(
        model=model,
        costs=costs_of(model, sizes),
        times=[
            costs.NodeTime(costs.Line(0.0, forward), costs.Line(0.0, 2 * forward))
            for forward in seconds
        ],
        cluster=cluster,
        shardings_of=lambda *_: [costs.REPLICATED] * len(model.nodes),
    )


def downsets(block_graph: Sequence[blocks.Block]) -> tuple[int, ...]:
    """All that there are."""
    return blocks.downsets(block_graph, 1 << len(block_graph)) or ()


def tables_of(
    planned: costs.Subject, block_graph: Sequence[blocks.Block] | None = None
) -> cost_tables.Tables:
    """With every cut that there is between these blocks, or between all nodes."""
    model = planned.model
    weights = [node_time.each for node_time in planned.times]
    block_graph = block_graph or blocks.condense(model, weights, len(weights))
    replicated = [costs.REPLICATED] * len(weights)
    return cost_tables.Tables(planned, block_graph, downsets(block_graph), replicated)
