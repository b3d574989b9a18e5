"""The ordered list of each rank: its work, messages between stages, sums. Pure.

A rank executes its list in order, and every message blocks until both ends have reached it, as a
collective operation does. Lists that finish under this rule finish on any device, whatever it
buffers. Two stages that both send first would wait for each other. In 1F1B, that could happen with
the activations of one and the gradients of the other. Therefore all lists follow from one global
order. It is the order of an ideal run, in which a message is passed on once its receiver is ready.
Lists that agree with one order cannot deadlock.
"""

import dataclasses
import enum
from collections.abc import Collection, Hashable, Iterator, Sequence

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting, schedule


class SumKind(enum.StrEnum):
    """The sums of a step; all but the first two kinds follow the last microbatch."""

    DENOMINATORS = "denominators"
    """Denominators of the loss: over the last stage, between forward and backward passes."""
    SHARED_WEIGHT = "gradients of a shared weight"
    """Over the stages that share it."""
    PARTIAL_GRADIENTS = "partial gradients"
    """Over an axis that splits layers: gradients of which each rank has a summand."""
    GRADIENTS = "gradients"
    """Over the data axis."""
    LOSS = "loss"
    """Over all ranks: numerators and denominators of the loss, and the requests of processes."""
    SQUARES = "squares"
    """Over an axis that splits layers: squares of gradients of variables sharded over it. Over the
    data axis too if its ranks have slices of gradients."""
    NORM = "norm"
    """Over all ranks: the norm of the gradients, and whether they are finite."""
    GRADIENTS_AND_LOSS = "gradients and loss"
    """Over all ranks: the one sum that ends a step if only batches are divided. `NORM` is not
    needed then, because each rank has all gradients."""


@dataclasses.dataclass(frozen=True, slots=True)
class Sum:
    """A sum over a group of ranks."""

    kind: SumKind
    axis: shape.Axis | None = None
    """The axis of a sum over an axis that splits layers."""
    key: str = ""
    """The key of a weight that stages share."""

    def __str__(self) -> str:
        return f"sum of {' '.join(filter(None, (self.kind, self.key, self.axis)))}"


@dataclasses.dataclass(frozen=True, slots=True)
class Message:
    """A message from one rank to another: a tensor of a microbatch, or its gradient."""

    work: schedule.Pass
    tensor: int
    microbatch: int

    def __str__(self) -> str:
        what = "tensor" if self.work is schedule.Pass.FORWARD else "gradient of tensor"
        return f"message of {what} {self.tensor} of microbatch {self.microbatch}"


@dataclasses.dataclass(frozen=True, slots=True)
class Collective:
    """An operation of several ranks: a `Message` or a `Sum`.

    It runs once each of its ranks has reached an equal one in its list. `ranks` are the source and
    the target of a message, or the group of a sum.
    """

    ranks: tuple[int, ...]
    operation: Hashable

    def __str__(self) -> str:
        return f"{self.operation} among ranks {', '.join(map(str, self.ranks))}"


Step = schedule.Action | Collective
"""An operation of one rank alone, or of several."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """The work of all stages in one step."""

    count: int
    """Number of stages."""
    microbatches: int
    order: schedule.Schedule
    transfers: tuple[cutting.Transfer, ...]
    without_gradient: frozenset[int] = frozenset()
    """Tensors without a gradient, such as masks and indices."""
    shared: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Keys of shared weights, with their stages. Their gradients are summed after the
    microbatches."""
    settles: bool = False
    """Whether the last stages sum up denominators of the loss before any of them goes backward."""


def of_stages(
    model: graph.Graph,
    model_stages: Sequence[cutting.ModelStage],
    microbatches: int,
    order: schedule.Schedule,
) -> PipelineSpec:
    """Build the specification from the stages of a model."""
    transfers = tuple(transfer for stage in model_stages for transfer in stage.sent)
    kept: dict[str, list[int]] = {}
    for stage in model_stages:
        for key, owner in stage.borrowed:
            kept.setdefault(key, [owner]).append(stage.index)
    return PipelineSpec(
        count=len(model_stages),
        microbatches=microbatches,
        order=order,
        transfers=transfers,
        without_gradient=frozenset(
            transfer.tensor for transfer in transfers if not model.tensors[transfer.tensor].is_real
        ),
        shared=tuple((key, tuple(kept[key])) for key in model.variables if key in kept),
    )


Turn = tuple[int, schedule.Action]
"""A stage and its action."""


def lists(pipeline: PipelineSpec) -> dict[int, list[Step]]:
    """Return the list of each stage; a schedule that deadlocks is a ValueError."""
    events: list[tuple[int, bool, bool, tuple[int, ...], Step]] = []
    for turn, start in _starts(pipeline).items():
        stage, action = turn
        is_backward = action.work is schedule.Pass.BACKWARD
        # At equal times, messages come first: a stage receives before it works, and sends
        # afterwards. Their order is the same for all microbatches, so that the lists repeat.
        events += [
            (start, False, is_backward, message.ranks, message)
            for message in _messages(pipeline, turn)
        ]
        events.append((start, True, is_backward, (stage,), action))
    steps: dict[int, list[Step]] = {stage: [] for stage in range(pipeline.count)}
    for *_, participants, step in sorted(events, key=lambda event: event[:4]):
        for participant in participants:
            steps[participant].append(step)
    for key, participants in pipeline.shared:
        for participant in participants:
            steps[participant].append(Collective(participants, Sum(SumKind.SHARED_WEIGHT, key=key)))
    return steps


def on_mesh(
    pipelines: Sequence[PipelineSpec],
    mesh: shape.MeshShape,
    *,
    trains: bool,
    shards_optimizer: bool = False,
) -> dict[int, list[Step]]:
    """Return the list of each rank of a mesh whose other axes repeat the pipeline.

    Args:
        pipelines: of each place along the data axis; they differ in their microbatches only.
        trains: whether the sums that end a step follow.
        shards_optimizer: whether each rank along the data axis gets slices of gradients only.
    """
    counts = {pipeline.count for pipeline in pipelines}
    if counts != {mesh.stage}:
        raise ValueError(f"the mesh has {mesh.stage} stages, and the pipelines {counts}")
    stage_lists = [lists(pipeline) for pipeline in pipelines]
    rank_lists: dict[int, list[Step]] = {}
    for rank in range(mesh.size):
        coordinates = mesh.coordinates(rank)
        along = mesh.group(rank, shape.Axis.STAGE).ranks
        steps = stage_lists[coordinates[shape.Axis.DATA]][coordinates[shape.Axis.STAGE]]
        rank_lists[rank] = [
            step
            if isinstance(step, schedule.Action)
            else dataclasses.replace(step, ranks=tuple(along[stage] for stage in step.ranks))
            for step in steps
        ]
        if pipelines[0].settles and coordinates[shape.Axis.STAGE] == mesh.stage - 1:
            of_loss = mesh.ranks_of_stage(mesh.stage - 1)
            forwards = [
                number
                for number, step in enumerate(steps)
                if isinstance(step, schedule.Action) and step.work is schedule.Pass.FORWARD
            ]
            at = 1 + max(forwards, default=-1)
            rank_lists[rank].insert(at, Collective(of_loss, Sum(SumKind.DENOMINATORS)))
        if trains:
            rank_lists[rank] += _final_sums(mesh, rank, shards_optimizer=shards_optimizer)
    return rank_lists


def _final_sums(
    mesh: shape.MeshShape, rank: int, *, shards_optimizer: bool
) -> Iterator[Collective]:
    every_rank = tuple(range(mesh.size))
    if mesh.only_data and not shards_optimizer:
        yield Collective(every_rank, Sum(SumKind.GRADIENTS_AND_LOSS))
        return
    groups = [mesh.group(rank, axis) for axis in (shape.Axis.SPATIAL, shape.Axis.TENSOR)]
    splitting = [group for group in groups if len(group.ranks) > 1]
    for group in splitting:
        yield Collective(group.ranks, Sum(SumKind.PARTIAL_GRADIENTS, group.axis))
    replicas = mesh.group(rank, shape.Axis.DATA)
    yield Collective(replicas.ranks, Sum(SumKind.GRADIENTS))
    yield Collective(every_rank, Sum(SumKind.LOSS))
    for group in (*splitting, *([replicas] if shards_optimizer else [])):
        yield Collective(group.ranks, Sum(SumKind.SQUARES, group.axis))
    yield Collective(every_rank, Sum(SumKind.NORM))


def _messages(pipeline: PipelineSpec, turn: Turn) -> Iterator[Collective]:
    """The messages that a stage receives for a turn."""
    stage, action = turn
    for transfer in pipeline.transfers:
        message = Message(action.work, transfer.tensor, action.microbatch)
        if action.work is schedule.Pass.FORWARD and transfer.target == stage:
            yield Collective((transfer.source, transfer.target), message)
        has_gradient = transfer.tensor not in pipeline.without_gradient
        if action.work is schedule.Pass.BACKWARD and transfer.source == stage and has_gradient:
            yield Collective((transfer.target, transfer.source), message)


def _starts(pipeline: PipelineSpec) -> dict[Turn, int]:
    """The start of each turn, if all turns take equally long, and messages no time."""
    pending: dict[int, list[schedule.Action]] = {stage: [] for stage in range(pipeline.count)}
    if pipeline.microbatches:
        for stage in pending:
            in_order = pipeline.order(pipeline.count, pipeline.microbatches, stage)
            pending[stage] = list(in_order)[::-1]
    starts: dict[Turn, int] = {}
    free = dict.fromkeys(pending, 0)
    while any(pending.values()):
        before = len(starts)
        for stage, actions in pending.items():
            while actions:
                needs = _needs(pipeline, (stage, actions[-1]))
                if not all(turn in starts for turn in needs):
                    break
                start = max((free[stage], *(starts[turn] + 1 for turn in needs)))
                starts[stage, actions.pop()] = start
                free[stage] = start + 1
        if len(starts) == before:
            stuck = "; ".join(
                f"stage {stage}: {remaining_actions[-1]}"
                for stage, remaining_actions in pending.items()
                if remaining_actions
            )
            raise ValueError(f"the schedule cannot go on ({stuck})")
    return starts


def _needs(pipeline: PipelineSpec, turn: Turn) -> Collection[Turn]:
    """The turns whose results a turn needs."""
    stage, action = turn
    needs = [(sent.ranks[0], action) for sent in _messages(pipeline, turn)]
    if action.work is schedule.Pass.BACKWARD:
        needs.append((stage, schedule.Action(schedule.Pass.FORWARD, action.microbatch)))
    return needs
