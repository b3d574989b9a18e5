"""What stages keep that compute their activations again, and what they compute again. Pure."""

import bisect
import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tfparallel_trainer.engines.split.planning import costs, cuts, parameter_memory, recomputation


class RecomputedStages:
    """Of one model in blocks, with one way for each node; bytes are those of an example."""

    def __init__(
        self,
        subject: costs.Subject,
        shardings: Sequence[costs.Sharding],
        block_of: Mapping[int, int],
        membership: cuts.Matrix,
        crossing: cuts.Crossing,
    ) -> None:
        """Take a membership: 1 where a downset (row) has a block (column), else 0."""
        model, nodes, tensors = subject.model, subject.costs.nodes, subject.costs.tensors
        ends = recomputation.segment_ends(model, subject.costs)
        self._segment_of = [bisect.bisect_right(ends, index) for index in range(len(nodes))]
        self._block_of, self._membership = block_of, membership
        shares = np.array([sharding.kept for sharding in shardings])
        boundary_tensors = recomputation.crossing_tensors(model, ends)
        makers = {
            number: index for index, node in enumerate(model.nodes) for number in node.outputs
        }
        boundary_bytes = np.array(
            [
                sum(tensors[number].bytes for number in node.outputs if number in boundary_tensors)
                for node in model.nodes
            ]
        )
        received = [tensors[number].bytes * shares[makers[number]] for number in crossing.tensors]
        self.kept: cuts.Matrix = self._between(boundary_bytes * shares) + crossing.received(
            np.array(received)
        )
        """What a stage keeps of a microbatch: the tensors that its segments take."""
        inner = shares * np.array(recomputation.kept_by_node(model, subject.costs))
        working = shares * np.array([node_costs.working_bytes for node_costs in nodes])
        self._largest = self._largest_segments(inner, working)

    def segment(self, held_microbatches: int) -> cuts.Matrix:
        """What segments of a stage keep besides while its backward pass runs.

        A stage that holds several microbatches computes each segment again and keeps only one at a
        time. Otherwise the stage does not compute its last segment again
        (`execution.backward._recomputes`). What that segment keeps is then an argument of the
        function that goes backward (`execution.microbatch_function`), and TensorFlow frees
        arguments when a function ends. So it adds to what the largest other segment keeps.
        """
        largest = self._largest
        if held_microbatches > 1:
            return np.maximum(largest.before, largest.last)
        return largest.last + largest.before

    def running(self, held_microbatches: int) -> cuts.Matrix:
        """The most that a microbatch takes while its backward goes through a stage."""
        largest = self._largest
        if held_microbatches > 1:
            return self.kept + np.maximum(largest.running_before, largest.running_last)
        return self.kept + largest.last + np.maximum(largest.running_before, largest.widest_last)

    def last_segment(self, amounts: cuts.Vector) -> cuts.Matrix:
        """The sum over the nodes of the last segment of each stage, from what each node has."""
        last = np.zeros((len(self._membership), len(self._membership)))
        for nodes in self._segments():
            of_segment = np.zeros(len(amounts))
            of_segment[nodes] = amounts[nodes]
            last = np.where(self._stages_with(nodes), self._between(of_segment), last)
        return last

    def before_last(self, nodes: Sequence[int]) -> list[int]:
        """The nodes of a stage that are not in its last segment."""
        last = max(self._segment_of[node] for node in nodes)
        return [node for node in nodes if self._segment_of[node] < last]

    def _largest_segments(self, inner: cuts.Vector, working: cuts.Vector) -> "_Largest":
        """Compare the segments of each stage, given what each node keeps and works with."""
        zeros = np.zeros((len(self._membership), len(self._membership)))
        largest = _Largest(zeros, zeros, zeros, zeros, zeros)
        for nodes in self._segments():
            kept = running = widest = zeros
            for node in nodes:
                has = self._stages_with([node])
                kept = kept + has * inner[node]
                running = np.maximum(running, has * (kept + working[node]))
                widest = np.maximum(widest, has * working[node])
            largest = largest.followed_by(self._stages_with(nodes), kept, running, widest)
        return largest

    def _segments(self) -> list[list[int]]:
        """The nodes of each segment, first to last."""
        segments: list[list[int]] = [[] for _ in range(self._segment_of[-1] + 1)]
        for node, segment in enumerate(self._segment_of):
            segments[segment].append(node)
        return segments

    def _stages_with(self, nodes: Sequence[int]) -> npt.NDArray[np.bool_]:
        places = sorted({self._block_of[node] for node in nodes})
        return parameter_memory.stages_with(self._membership, places)

    def _between(self, amounts: cuts.Vector) -> cuts.Matrix:
        """Sums over the nodes of a stage, from what each node has."""
        homes = [self._block_of[node] for node in range(len(amounts))]
        blocks = np.bincount(homes, weights=amounts, minlength=self._membership.shape[1])
        total = self._membership @ blocks
        return np.asarray(total[None, :] - total[:, None])


@dataclasses.dataclass(frozen=True, slots=True)
class _Largest:
    """Bytes of an example, by stage: of its last segment, and of the largest one before it."""

    last: cuts.Matrix
    """What the last segment keeps."""
    running_last: cuts.Matrix
    """The same with the node that runs."""
    widest_last: cuts.Matrix
    """What its widest node works with."""
    before: cuts.Matrix
    """What the segment before it keeps that keeps most."""
    running_before: cuts.Matrix
    """The same with the node that runs, of the segment that takes most."""

    def followed_by(
        self,
        has: npt.NDArray[np.bool_],
        kept: cuts.Matrix,
        running: cuts.Matrix,
        widest: cuts.Matrix,
    ) -> "_Largest":
        """Take a next segment for the last one of the stages that have nodes of it."""
        return _Largest(
            np.where(has, kept, self.last),
            np.where(has, running, self.running_last),
            np.where(has, widest, self.widest_last),
            np.where(has, np.maximum(self.before, self.last), self.before),
            np.where(has, np.maximum(self.running_before, self.running_last), self.running_before),
        )
