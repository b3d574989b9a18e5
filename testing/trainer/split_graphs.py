"""Graphs for tests that need no model."""

from collections.abc import Sequence

from tfparallel_trainer.engines.split.model import graph


def chain(names: Sequence[str], kind: graph.NodeKind = graph.NodeKind.LAYER) -> graph.Graph:
    """Return a model of calls that follow each other."""
    return graph.Graph(
        nodes=tuple(_node(number, name, kind) for number, name in enumerate(names)),
        tensors=(graph.Tensor((None,), "float32"),) * (len(names) + 1),
        input_names=("input",),
        outputs=(graph.Output("output", len(names), None),),
        input_structure=graph.Edge(0),
        output_structure=graph.Edge(len(names)),
        variables={},
    )


def _node(number: int, name: str, kind: graph.NodeKind) -> graph.Node:
    return graph.Node(
        kind=kind,
        name=name,
        calls=None,
        arguments=(graph.Edge(number),),
        keywords={},
        masks={},
        inputs=(number,),
        outputs=(number + 1,),
        variables=(),
    )
