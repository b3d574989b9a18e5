"""Runs nodes of a graph for one rank of a group that splits layers, on the rank's parts."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.layers import adjoint, assignment, layout
from tfparallel_trainer.engines.split.layers.rules import catalog, registry
from tfparallel_trainer.engines.split.model import graph, interpreter


def run_nodes(
    plan: assignment.Assignment,
    nodes: Iterable[graph.Node],
    tensors: Mapping[int, Any],
    variables: Mapping[str, Any],
    training: bool,
    groups: adjoint.Group,
    *,
    leaving: Collection[int],
    constant: Collection[int] = (),
    same_dropout: bool = False,
) -> interpreter.Part:
    """Run some nodes of a graph; all ranks of the groups run the same ones.

    Args:
        tensors: this rank's parts of tensors from outside, by number, in the layouts of `plan`.
        leaving: the tensors that are used outside of these nodes. Gradients enter through them
            only, by one operation, so that all ranks communicate in the same order.
        constant: the leaving tensors without a gradient. A gradient of zeros would not do, because
            an optimizer treats it differently.
        same_dropout: whether random layers draw what the unsplit model would.

    Returns:
        The parts of the leaving tensors, and the new parts of variables that have changed. The
        losses that layers add are the last; they are the same on all ranks.
    """
    parts_by_number, values = dict(tensors), dict(variables)
    changed: dict[str, Any] = {}
    added_losses: tuple[Any, ...] = ()
    brought: dict[tuple[int, layout.Layout], Any] = {}

    def bring(tensor: int, tensor_layout: layout.Layout) -> Any:
        """Convert a tensor to the layout that a node needs; nodes share the result."""
        if (tensor, tensor_layout) not in brought:
            before = plan.layouts[tensor]
            brought[tensor, tensor_layout] = adjoint.reshard(
                parts_by_number[tensor], before, tensor_layout, groups
            )
        return brought[tensor, tensor_layout]

    for node in nodes:
        choice = plan.for_node(node)
        local = registry.Local(
            model=plan.model,
            node=node,
            split=choice.split,
            training=training,
            same_dropout=same_dropout,
            groups=groups,
            tensors={
                number: bring(number, tensor_layout)
                for number, tensor_layout in choice.split.wants.items()
            },
            variables={key: values[key] for key in node.variables},
            changed={},
        )
        if choice.sharding == registry.REPLICATED:
            part = interpreter.run_nodes(
                plan.model, (node,), local.tensors, local.variables, training
            )
            parts_by_number |= {number: part.tensors[number] for number in node.outputs}
            local.changed.update(part.changed)
            added_losses += part.added_losses
        else:
            parts_by_number |= _with_sizes(
                local, catalog.rules_of(node)[choice.sharding].compute(local)
            )
        values |= local.changed
        changed |= local.changed
    return interpreter.Part(
        _with_one_end(plan.model, parts_by_number, leaving, constant), changed, added_losses
    )


def _with_sizes(local: registry.Local, outputs: Sequence[Any]) -> dict[int, Any]:
    """Set the static sizes that some operations lose; without them, parts cannot be gathered."""
    parts: dict[int, Any] = {}
    for number, part in zip(local.node.outputs, outputs, strict=True):
        dims = local.split.gives[number].local(local.model.tensors[number].shape, local.place())
        parts[number] = None
        if part is not None:
            interpreter.check_shape(local.model, local.node, part, dims)
            sized = tf.ensure_shape(part, dims)
            parts[number] = interpreter.with_logits(sized, interpreter.logits_of(part))
    return parts


def outputs(
    plan: assignment.Assignment,
    tensors: Mapping[int, Any],
    groups: adjoint.Group,
    examples: layout.Cut | None = None,
    constant: Collection[int] = (),
) -> dict[int, Any]:
    """Convert outputs of the model for the loss and the metrics.

    Args:
        tensors: this rank's parts, by number, in the layouts of `plan`.
        examples: how the ranks of an axis divide the examples among them. None: each gets all.
        constant: the tensors without a gradient.
    """
    converted = {}
    for number, part in tensors.items():
        before = plan.layouts[number]
        after = layout.whole(len(before.cuts))
        if examples is not None:
            after = after.put(0, examples)
        logits = interpreter.logits_of(part)
        converted[number] = adjoint.reshard(part, before, after, groups)
        if logits is not None and before != after:
            resharded_logits = adjoint.reshard(logits, before, after, groups)
            interpreter.with_logits(converted[number], resharded_logits)
    if examples is None:  # the backward pass only slices
        return converted
    return _with_one_end(plan.model, converted, converted, constant)


def _with_one_end(
    model: graph.Graph,
    tensors: Mapping[int, Any],
    leaving: Collection[int],
    constant: Collection[int],
) -> dict[int, Any]:
    real = [
        number for number in leaving if model.tensors[number].is_real and number not in constant
    ]
    logits = {number: interpreter.logits_of(tensors[number]) for number in real}
    with_logits = [number for number in real if logits[number] is not None]
    ends = adjoint.join_gradients(
        [tensors[number] for number in real] + [logits[one] for one in with_logits]
    )
    joined = dict(zip(real, ends, strict=False))
    for logit_number, end in zip(with_logits, ends[len(real) :], strict=True):
        interpreter.with_logits(joined[logit_number], end)
    return {number: tensors[number] for number in leaving} | joined
