"""Divides a stage into segments, whose activations its backward pass computes again. Pure."""

import dataclasses
import itertools
from collections.abc import Collection

from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """Nodes of a stage that follow each other."""

    nodes: tuple[graph.Node, ...]
    inputs: tuple[int, ...]
    """The tensors that it takes: from segments before it, from other stages, or of the model."""
    outputs: tuple[int, ...]
    """The tensors that it makes and that segments behind it, other stages or the loss take."""
    is_last: bool


def divide(stage: cutting.ModelStage, ends: Collection[int] = ()) -> tuple[Segment, ...]:
    """Divide a stage behind some numbers of its nodes; without any, it is one segment."""
    bounds = sorted({0, *ends, len(stage.nodes)})
    segments = []
    outgoing = {transfer.tensor for transfer in stage.sent} | _loss_tensors(stage)
    for low, high in reversed(list(itertools.pairwise(bounds))):
        nodes = stage.nodes[low:high]
        outputs = list(dict.fromkeys(tensor for node in nodes for tensor in node.outputs))
        inputs = dict.fromkeys(tensor for node in nodes for tensor in node.inputs)
        is_last = high == len(stage.nodes)
        if is_last:
            inputs |= dict.fromkeys(sorted(_loss_tensors(stage)))
        segments.append(
            Segment(
                nodes=nodes,
                inputs=tuple(tensor for tensor in inputs if tensor not in outputs),
                outputs=tuple(tensor for tensor in outputs if tensor in outgoing),
                is_last=is_last,
            )
        )
        outgoing |= set(inputs)
    return tuple(reversed(segments))


def _loss_tensors(stage: cutting.ModelStage) -> set[int]:
    """The outputs of the model whose loss a stage computes, and their masks."""
    numbers = (number for output in stage.outputs for number in (output.tensor, output.mask))
    return {number for number in numbers if number is not None}
