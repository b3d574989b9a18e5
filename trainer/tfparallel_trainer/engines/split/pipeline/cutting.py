"""Cuts a graph into stages: the nodes, variables, inputs and outputs of each. Pure.

A tensor goes directly from the stage that computes it to each stage that needs it. So a connection
that skips stages costs one message, and no memory in between. Inputs of the model are read by each
stage that needs them, not passed on. Outputs and their masks go to the last stage, which computes
the loss. So a single stage has all terms of the loss, and one copy of each metric.
"""

import dataclasses
import itertools
from collections.abc import Sequence

from tfparallel_trainer import errors
from tfparallel_trainer.engines.split.model import graph


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """A tensor that one stage sends to a later one; its gradient goes back."""

    source: int
    target: int
    tensor: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ModelStage:
    """A part of the model that one rank of the stage axis runs."""

    index: int
    nodes: tuple[graph.Node, ...]
    inputs: tuple[int, ...]
    """Inputs of the model that it reads."""
    received: tuple[Transfer, ...]
    """Received tensors, in the order of their receipt."""
    sent: tuple[Transfer, ...]
    """Sent tensors, in the order of sending."""
    outputs: tuple[graph.Output, ...]
    """The outputs of the model whose loss it computes."""
    owned: tuple[str, ...]
    """Keys of the variables that a checkpoint takes from this stage."""
    borrowed: tuple[tuple[str, int], ...]
    """Keys of the variables that it keeps a replica of, each with the stage that owns it."""


def cut(model: graph.Graph, ends: Sequence[int]) -> tuple[ModelStage, ...]:
    """Cut a graph's nodes, in order, behind the ends of all stages but the last.

    No stage is empty.
    """
    bounds = [0, *ends, len(model.nodes)]
    if any(low >= high for low, high in itertools.pairwise(bounds)):
        raise ValueError(f"stages that end at {list(ends)} of {len(model.nodes)} nodes are empty")
    nodes = [model.nodes[low:high] for low, high in itertools.pairwise(bounds)]
    makers = dict.fromkeys(model.inputs, 0) | {
        tensor: index
        for index, stage_nodes in enumerate(nodes)
        for node in stage_nodes
        for tensor in node.outputs
    }
    inputs_of_stages = [
        {tensor for node in stage_nodes for tensor in node.inputs} for stage_nodes in nodes
    ]
    inputs_of_stages[-1].update(model.output_tensors())
    transfers = sorted(
        Transfer(makers[tensor], index, tensor)
        for index, tensors in enumerate(inputs_of_stages)
        for tensor in tensors
        if tensor not in model.inputs and makers[tensor] != index
    )
    read = [
        dict.fromkeys(key for node in stage_nodes for key in node.variables)
        for stage_nodes in nodes
    ]
    # The first stage that reads a variable owns it; the first of all owns those that none reads.
    owners = dict.fromkeys(model.variables, 0)
    for index, keys in reversed(list(enumerate(read))):
        owners |= dict.fromkeys(keys, index)
    return tuple(
        ModelStage(
            index=index,
            nodes=stage_nodes,
            inputs=tuple(tensor for tensor in model.inputs if tensor in inputs_of_stages[index]),
            received=tuple(transfer for transfer in transfers if transfer.target == index),
            sent=tuple(transfer for transfer in transfers if transfer.source == index),
            outputs=model.outputs if index == len(nodes) - 1 else (),
            owned=tuple(key for key in model.variables if owners[key] == index),
            borrowed=tuple((key, owners[key]) for key in read[index] if owners[key] != index),
        )
        for index, stage_nodes in enumerate(nodes)
    )


_SHOWN = 30
"""Number of names in a message."""


def ends_of_names(model: graph.Graph, names: Sequence[str]) -> list[int]:
    """Return after how many nodes each stage but the last one ends.

    `names` are the layers, or nested models, with which stages but the first begin, as in
    `Node.name`. The first of several calls counts. A missing name, or one that is not after the
    previous one, is a BadConfigurationError.
    """
    called = [node.name.partition("#")[0] for node in model.nodes]
    stage_ends: list[int] = []
    for name in names:
        first = next(
            (
                index
                for index, layer_name in enumerate(called)
                if f"{layer_name}/".startswith(f"{name}/")
            ),
            None,
        )
        if first is None:
            raise errors.BadConfigurationError(
                f"mesh.cuts names {name!r}, and the model calls {_listed(called)}: give one of "
                "these names, or that of a model among them."
            )
        if first <= (stage_ends[-1] if stage_ends else 0):
            before = repr(names[len(stage_ends) - 1]) if stage_ends else "the first layer"
            raise errors.BadConfigurationError(
                f"mesh.cuts names {name!r}, which is not called behind {before}: give names in the "
                f"order of the calls, {_listed(called)}."
            )
        stage_ends.append(first)
    return stage_ends


def _listed(called: Sequence[str]) -> str:
    names = list(dict.fromkeys(called))
    return ", ".join(names[:_SHOWN]) + (" and more" if len(names) > _SHOWN else "")
