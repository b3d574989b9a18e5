"""What a rank of a split model communicates in all, by the model's assignment."""

import dataclasses
import inspect
import itertools
from collections.abc import Iterable, Iterator, Mapping

import keras

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, communication, layout
from tfparallel_trainer.engines.split.layers.rules import registry
from tfparallel_trainer.engines.split.model import graph

_PROBABILITIES = (
    keras.activations.sigmoid,
    keras.activations.softmax,
    keras.ops.sigmoid,
    keras.ops.softmax,
)

_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)


def places(degrees: Mapping[shape.Axis, int]) -> list[dict[shape.Axis, int]]:
    """All places along the axes that split layers, the last axis varying fastest."""
    ranges = [range(degrees.get(axis, 1)) for axis in layout.AXES]
    return [dict(zip(layout.AXES, indices, strict=True)) for indices in itertools.product(*ranges)]


def replicated(plan: assignment.Assignment) -> list[str]:
    """A sentence for each node that holds weights and is replicated all the same."""
    return [
        f"{choice.node.name} is replicated: {choice.why}."
        for choice in plan.choices
        if choice.sharding == registry.REPLICATED and choice.node.variables and choice.why
    ]


def brought(costs: Iterable[communication.Traffic], batch: int) -> int:
    """Bytes that a rank brings to operations, forward and backward."""
    return sum(cost.brought(batch) for cost in costs)


def list_traffic(plan: assignment.Assignment) -> list[communication.Traffic]:
    """All that a rank communicates for a microbatch."""
    return [*(cost for choice in plan.choices for cost in choice.costs), *ending(plan)]


def ending(plan: assignment.Assignment) -> Iterator[communication.Traffic]:
    """What it costs to make the outputs of the model whole, for the loss and the metrics."""
    model = plan.model
    trained = graph.with_gradient(model)
    makers = {number: node for node in model.nodes for number in node.outputs}
    gathered = {want for choice in plan.choices for want in choice.split.wants.items()}
    for number in dict.fromkeys(model.output_tensors()):
        tensor = model.tensors[number]
        whole = layout.whole(len(tensor.shape))
        if (number, whole) in gathered:
            continue
        # What Keras makes an output of goes along with it: see `execution.logits_of`.
        count = 2 if number in makers and _keeps_logits(makers[number], number) else 1
        for cost in communication.resharding(
            tensor.shape, tensor.dtype, plan.layouts[number], whole, number in trained
        ):
            yield from [dataclasses.replace(cost, rows=tensor.rows_of_example)] * count


def _keeps_logits(node: graph.Node, tensor: int) -> bool:
    """Whether Keras keeps what a call makes an output's probabilities of, for a crossentropy."""
    if isinstance(node.calls, _ATTENTION):
        return tensor != node.outputs[0] and not _masks_scores(node)
    last = getattr(node.calls, "activation", node.calls)
    return isinstance(last, keras.layers.Softmax) or any(
        last is layer_type for layer_type in _PROBABILITIES
    )


def _masks_scores(node: graph.Node) -> bool:
    """Whether attention clears scores after the softmax, which gives a tensor without logits."""
    call = inspect.signature(node.calls.call).bind(*node.arguments, **node.keywords)
    masks = (call.arguments.get(name) for name in ("attention_mask", "use_causal_mask"))
    window = node.calls.get_config().get("sliding_window")
    return bool(node.masks) or window is not None or any(masks)
