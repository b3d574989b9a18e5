"""The division of a model over the ranks of a mesh, and of a batch into microbatches."""

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.layers import assignment, layout
from tfparallel_trainer.engines.split.model import (
    added_losses,
    example_independence,
    graph,
    randomness,
    recording,
    step_effects,
)
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule, segments


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Partition:
    """A model in stages on a mesh."""

    mesh: shape.MeshShape
    model: graph.Graph
    stages: tuple[cutting.ModelStage, ...]
    microbatches: int
    """Number of microbatches of a rank's share of a batch; fewer if it has fewer examples."""
    order: schedule.Schedule
    plan: assignment.Assignment
    """The split of each node over the ranks of the spatial and tensor axes."""
    settles: bool = False
    """As in `programs.PipelineSpec`; then all microbatches go forward before any goes backward."""
    adds_up: bool = False
    """Whether layers add up over the data axis. Then all its places have equally many
    microbatches."""
    effects: step_effects.Effects = dataclasses.field(default_factory=step_effects.Effects)
    """The effects of a step on tensors and weights, once the loss is compiled."""
    shards_optimizer: bool = False
    """Whether each rank along the data axis updates a slice of its weights only."""
    segment_ends: tuple[int, ...] | None = None
    """Behind which nodes of the model segments end, if backward passes compute the activations of
    segments again; None if they do not."""
    same_dropout: bool = False
    """Whether random layers draw as in one process, to compare meshes with each other. Each rank
    then draws for the full tensor."""

    def counts(self, shares: Sequence[int]) -> list[int]:
        """Number of microbatches of each place along the data axis."""
        counts = [min(self.microbatches, share) for share in shares]
        if not self.adds_up:
            return counts
        fewest = min((count for count in counts if count), default=0)
        return [min(count, fewest) for count in counts]

    def pipeline(self, count: int) -> programs.PipelineSpec:
        """The work of the stages on this many microbatches of one place along the data axis."""
        order = schedule.gpipe if self.settles else self.order
        pipeline = programs.of_stages(self.model, self.stages, count, order)
        return dataclasses.replace(
            pipeline,
            settles=self.settles,
            without_gradient=pipeline.without_gradient | self.effects.constant_tensors,
        )

    def segments(self, stage: cutting.ModelStage) -> tuple[segments.Segment, ...]:
        """The segments that a stage goes back through, one after the other."""
        first = sum(len(earlier.nodes) for earlier in self.stages[: stage.index])
        ends = [end - first for end in self.segment_ends or ()]
        return segments.divide(stage, [end for end in ends if 0 < end < len(stage.nodes)])

    def training(self, shares: Sequence[int]) -> dict[int, list[programs.Step]]:
        """The list of each rank for a step."""
        pipelines = [self.pipeline(count) for count in self.counts(shares)]
        return programs.on_mesh(
            pipelines, self.mesh, trains=True, shards_optimizer=self.shards_optimizer
        )

    def evaluation(self, shares: Sequence[int]) -> dict[int, list[programs.Step]]:
        """The list of each rank for an evaluation."""
        forwards = [
            dataclasses.replace(
                self.pipeline(count), order=schedule.forwards, shared=(), settles=False
            )
            for count in self.counts(shares)
        ]
        return programs.on_mesh(forwards, self.mesh, trains=False)

    def keys(self) -> dict[tuple[int, ...], int]:
        """A group key for each set of ranks that communicate, the same in all processes."""
        groups = sorted(set(self._groups()), key=lambda ranks: (len(ranks), ranks))
        return {ranks: self.mesh.other_key(number) for number, ranks in enumerate(groups)}

    def stage_of(self, rank: int) -> int:
        """Which stage a rank runs."""
        return self.mesh.coordinates(rank)[shape.Axis.STAGE]

    def parameter_bytes(self, stage: cutting.ModelStage) -> int:
        """Bytes of weights on a stage's fullest device, including borrowed weights."""
        size = 0
        for key in (*stage.owned, *(key for key, _ in stage.borrowed)):
            if not key.startswith(recording.SEED_PREFIX):
                variable = self.model.variables[key]
                part = self.plan.variables[key].layout.largest(tuple(variable.shape))
                size += math.prod(size or 0 for size in part) * graph.itemsize(variable.dtype)
        return size

    def number(self, message: programs.Message, transfer: cutting.Transfer) -> int:
        """A number of a message, unique between two ranks in a step."""
        transfers = self.stages[transfer.source].sent
        kind = 0 if message.work is schedule.Pass.FORWARD else 1
        position = transfers.index(transfer) * len(schedule.Pass) + kind
        return position * self.microbatches + message.microbatch

    def numbers(self) -> int:
        """One more than the largest of these numbers."""
        most = max((len(stage.sent) for stage in self.stages), default=0)
        return most * len(schedule.Pass) * self.microbatches

    def _groups(self) -> Iterator[tuple[int, ...]]:
        yield tuple(range(self.mesh.size))
        yield self.mesh.ranks_of_stage(self.mesh.stage - 1)
        shared = [group for _, group in self.pipeline(1).shared]
        pairs = {
            (transfer.source, transfer.target) for stage in self.stages for transfer in stage.sent
        }
        for rank in range(self.mesh.size):
            yield self.mesh.group(rank, shape.Axis.DATA).ranks
            along = self.mesh.group(rank, shape.Axis.STAGE).ranks
            for axis in layout.AXES:
                yield self.mesh.group(rank, axis).ranks
            for group in (*shared, *pairs):
                yield tuple(sorted(along[stage] for stage in group))


def divide(
    model: graph.Graph,
    mesh: shape.MeshShape,
    microbatches: int,
    order: schedule.Schedule,
    ends: Sequence[int],
    *,
    shardings: Mapping[str, str],
) -> Partition:
    """Divide a model over a mesh.

    Args:
        microbatches: parts that a rank's share of a batch is divided into.
        ends: behind how many nodes each stage but the last one ends.
        shardings: as `assignment.assign` takes them.

    Raises:
        UserCodeError: examples that the mesh divides depend on each other, or a layer has no seed.
    """
    randomness.check(model)
    if mesh.data * microbatches > 1:
        example_independence.check(model)
        added_losses.check(model)
    degrees = {axis: mesh.degree(axis) for axis in layout.AXES}
    return Partition(
        mesh=mesh,
        model=model,
        stages=cutting.cut(model, ends),
        microbatches=microbatches,
        order=order,
        plan=assignment.assign(model, degrees, shardings),
    )
