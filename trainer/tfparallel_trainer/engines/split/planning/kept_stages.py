"""What stages hold that keep all that their backward passes need. Pure."""

import functools
from collections.abc import Sequence

import numpy as np

from tfparallel_trainer.engines.split.planning import blocks, costs, cuts, parameter_memory


class KeptStages:
    """Of one model in blocks, with one way for each node; bytes are those of an example."""

    def __init__(
        self,
        subject: costs.Subject,
        shardings: Sequence[costs.Sharding],
        block_graph: Sequence[blocks.Block],
        membership: cuts.Matrix,
        crossing: cuts.Crossing,
    ) -> None:
        """Take a membership: 1 where a downset (row) has a block (column), else 0."""
        nodes, tensors = subject.costs.nodes, subject.costs.tensors
        self._membership = membership

        def of_node(index: int) -> float:
            outputs = (tensors[number] for number in subject.model.nodes[index].outputs)
            kept = sum(tensor.bytes for tensor in outputs if tensor.kept)
            return (nodes[index].inner_bytes + kept) * shardings[index].kept

        self._by_block = [sum(map(of_node, block.nodes)) for block in block_graph]
        self._working = [
            max(nodes[index].working_bytes * shardings[index].kept for index in block.nodes)
            for block in block_graph
        ]
        shares = {
            number: sharding.kept
            for node, sharding in zip(subject.model.nodes, shardings, strict=True)
            for number in node.outputs
        }
        self._early = np.array(
            [
                sum(nodes[index].early_bytes * shardings[index].kept for index in block.nodes)
                for block in block_graph
            ]
        )
        self._received = crossing.received(
            np.array(
                [
                    tensors[number].bytes * shares[number] * tensors[number].kept
                    for number in crossing.tensors
                ]
            )
        )
        self.kept: cuts.Matrix = self._between(np.array(self._by_block)) + self._received
        """What a stage keeps of a microbatch for its backward."""

    @functools.cached_property
    def widest(self) -> cuts.Matrix:
        """Of the widest node of a stage while its backward runs."""
        widest = np.zeros(self.kept.shape)
        for index in np.argsort(self._working):
            has = parameter_memory.stages_with(self._membership, [int(index)])
            widest = np.where(has, self._working[index], widest)
        return widest

    @functools.cached_property
    def running(self) -> cuts.Matrix:
        """The most of a microbatch while its backward goes through a stage as a function.

        TensorFlow frees the arguments of a function when it ends, and computes first what needs
        them alone.
        """
        return self.kept + self._between(self._early) + self.widest

    @functools.cached_property
    def running_alone(self) -> cuts.Matrix:
        """The same of a step's only microbatch: what later blocks kept is freed on the way."""
        kept = most = np.zeros(self.kept.shape)
        for index, size in enumerate(self._by_block):
            holds = parameter_memory.stages_with(self._membership, [index])
            kept = kept + holds * size
            most = np.maximum(most, holds * (kept + self._working[index]))
        return most + self._received

    def _between(self, of_blocks: cuts.Vector) -> cuts.Matrix:
        """Sums over the blocks of a stage, from what each block has."""
        total = self._membership @ of_blocks
        return np.asarray(total[None, :] - total[:, None])
