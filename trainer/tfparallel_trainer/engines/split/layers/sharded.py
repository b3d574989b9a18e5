"""Runs nodes of a graph for one rank of a group that splits layers, on its parts of everything."""

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import tensorflow as tf

from tfparallel_trainer.engines.split.layers import adjoint, assignment, layout
from tfparallel_trainer.engines.split.layers.rules import catalog, registry
from tfparallel_trainer.engines.split.model import execution, graph


def run_nodes(
    plan: assignment.Assignment,
    nodes: Iterable[graph.Node],
    tensors: Mapping[int, Any],
    variables: Mapping[str, Any],
    training: bool,
    groups: adjoint.Group,
    *,
    leaving: Collection[int],
    same_dropout: bool = False,
) -> execution.Part:
    """Run some nodes of a graph; all ranks of the groups run the same ones.

    Args:
        tensors: this rank's parts of what the nodes take from outside, by number, in the layouts of
            `plan.layouts`.
        leaving: the tensors that others than these nodes use. Gradients come in through them only.
            They come in one operation, so that all ranks communicate in the same order.
        same_dropout: whether random layers draw what the unsplit model would.

    Returns:
        The parts of the leaving tensors, and the new parts of variables that have changed. The
        losses that layers add are the last; they are the same on all ranks.
    """
    runner = _NodeRunner(plan, dict(tensors), dict(variables), training, groups, same_dropout)
    for node in nodes:
        runner.run(node)
    changed = {key: runner.variables[key] for key in runner.changed}
    return execution.Part(
        _with_one_end(plan.model, runner.tensors, leaving), changed, runner.added_losses
    )


def unsharded(plan: assignment.Assignment, tensor: int, part: Any, groups: adjoint.Group) -> Any:
    """Make a tensor whole on every rank, as the loss and the metrics want an output."""
    lies = plan.layouts[tensor]

    def gather(shard: Any) -> Any:
        return adjoint.reshard(shard, lies, layout.whole(len(lies.cuts)), groups)

    logits = execution.logits_of(part)
    if logits is None or lies.is_whole:
        return gather(part)
    return execution.with_logits(gather(part), gather(logits))


@dataclasses.dataclass(slots=True)
class _NodeRunner:
    plan: assignment.Assignment
    tensors: dict[int, Any]
    variables: dict[str, Any]
    training: bool
    groups: adjoint.Group
    same_dropout: bool
    changed: set[str] = dataclasses.field(default_factory=set)
    added_losses: tuple[Any, ...] = ()
    _brought: dict[tuple[int, layout.Layout], Any] = dataclasses.field(default_factory=dict)

    def run(self, node: graph.Node) -> None:
        """Run the next node."""
        choice = self.plan.of(node)
        tensors = {one: self._bring(one, lies) for one, lies in choice.split.wants.items()}
        variables = {key: self.variables[key] for key in node.variables}
        if choice.way == registry.REPLICATED:
            part = execution.run_nodes(self.plan.model, (node,), tensors, variables, self.training)
            self.tensors |= {one: part.tensors[one] for one in node.outputs}
            self._change(part.changed)
            self.added_losses += part.added_losses
            return
        changed: dict[str, Any] = {}
        local = registry.Local(
            model=self.plan.model,
            node=node,
            split=choice.split,
            training=self.training,
            same_dropout=self.same_dropout,
            groups=self.groups,
            tensors=tensors,
            variables=variables,
            changed=changed,
        )
        outputs = catalog.rules_of(node)[choice.way].compute(local)
        for number, part in zip(node.outputs, outputs, strict=True):
            # Some operations forget sizes, without which parts cannot be gathered.
            dims = choice.split.gives[number].local(
                self.plan.model.tensors[number].shape, local.place()
            )
            self.tensors[number] = (
                None
                if part is None
                else execution.with_logits(tf.ensure_shape(part, dims), execution.logits_of(part))
            )
        self._change(changed)

    def _change(self, changed: Mapping[str, Any]) -> None:
        self.variables |= changed
        self.changed |= set(changed)

    def _bring(self, tensor: int, lies: layout.Layout) -> Any:
        """Give a tensor in the layout that a node wants; nodes that want the same share it."""
        if (tensor, lies) not in self._brought:
            before = self.plan.layouts[tensor]
            self._brought[tensor, lies] = adjoint.reshard(
                self.tensors[tensor], before, lies, self.groups
            )
        return self._brought[tensor, lies]


def _with_one_end(
    model: graph.Graph, tensors: Mapping[int, Any], leaving: Collection[int]
) -> dict[int, Any]:
    real = [one for one in leaving if model.tensors[one].is_real]
    logits = {one: execution.logits_of(tensors[one]) for one in real}
    with_logits = [one for one in real if logits[one] is not None]
    ends = adjoint.one_end([tensors[one] for one in real] + [logits[one] for one in with_logits])
    joined = dict(zip(real, ends, strict=False))
    for one, end in zip(with_logits, ends[len(real) :], strict=True):
        execution.with_logits(joined[one], end)
    return {one: tensors[one] for one in leaving} | joined
