"""The ordered list of each rank: its work, messages between stages, sums. Pure.

A rank does its list in order, and every message blocks until the other end is there, as a
collective operation does. So lists that end that way end on any device, whatever it buffers.

Stages that each send first would wait for each other. In 1F1B the activations of one go where the
gradients of the other come from. Therefore all lists follow from one order of everything that
happens. It is that of an ideal run, in which a message is passed on when its taker is ready for it.
Lists that agree with one order cannot wait in a circle.
"""

import dataclasses
from collections.abc import Collection, Hashable, Iterator, Sequence

from tfparallel_trainer.comms import shape
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting, schedule

GRADIENTS = "gradients"
"""Tag of the sum over the data axis when all microbatches are through."""

DENOMINATORS = "denominators"
"""Tag of the sum over the data axis that the last stages make between forward and backward."""

PARTS = "parts of gradients"
"""Begins the tag of a sum over an axis that splits layers, of what each rank has a part of."""

SQUARES = "squares"
"""Begins the tag of a sum over such an axis of the squares of a variable that is cut over it."""

LOSS = "loss"
"""Tag of the sum over all ranks of what the loss is made of, and of their flags."""

NORM = "norm"
"""Tag of the sum over all ranks that tells how large the gradients are, and whether finite."""

ALL = "gradients and loss"
"""Tag of the one sum that ends a step where only batches are divided: of what `GRADIENTS` and
`LOSS` are about. `NORM` is not needed there, since each rank then has all gradients."""


@dataclasses.dataclass(frozen=True, slots=True)
class Rendezvous:
    """What several ranks do together: a send with its receive, or a sum over a group.

    It takes place when each of its ranks is at an equal rendezvous. `tag` distinguishes what the
    same ranks do together at different places of their lists.
    """

    kind: str
    ranks: tuple[int, ...]
    tag: Hashable

    def __str__(self) -> str:
        return f"{self.kind} of {self.tag} among ranks {', '.join(map(str, self.ranks))}"


Step = schedule.Action | Rendezvous
"""What a rank does alone, or with others."""


def message(source: int, target: int, tag: Hashable) -> Rendezvous:
    """A tensor that one rank sends and another takes; both have it in their lists."""
    return Rendezvous("message", (source, target), tag)


def total(ranks: Sequence[int], tag: Hashable) -> Rendezvous:
    """A sum, or any other collective operation, over a group."""
    return Rendezvous("total", tuple(ranks), tag)


@dataclasses.dataclass(frozen=True, slots=True)
class Parcel:
    """What a message carries: a tensor of a microbatch, or the gradient of one."""

    work: schedule.Pass
    tensor: int
    microbatch: int

    def __str__(self) -> str:
        what = "tensor" if self.work is schedule.Pass.FORWARD else "gradient of tensor"
        return f"{what} {self.tensor} of microbatch {self.microbatch}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSpec:
    """What stages do together in one step."""

    count: int
    """Number of stages."""
    microbatches: int
    order: schedule.Schedule
    transfers: tuple[cutting.Transfer, ...]
    without_gradient: frozenset[int] = frozenset()
    """Tensors that have none, such as masks and indices."""
    shared: tuple[tuple[str, tuple[int, ...]], ...] = ()
    """Keys of weights that stages share, with these; gradients are summed after microbatches."""
    settles: bool = False
    """Whether the last stages sum up denominators of the loss before any of them goes backward."""


def of_stages(
    model: graph.Graph,
    model_stages: Sequence[cutting.ModelStage],
    microbatches: int,
    order: schedule.Schedule,
) -> PipelineSpec:
    """Say what the stages of a model do together."""
    transfers = tuple(one for stage in model_stages for one in stage.sent)
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
            one.tensor for one in transfers if not model.tensors[one.tensor].is_real
        ),
        shared=tuple((key, tuple(kept[key])) for key in model.variables if key in kept),
    )


Turn = tuple[int, schedule.Action]
"""A stage and what it does."""


def lists(pipeline: PipelineSpec) -> dict[int, list[Step]]:
    """Give the list of each stage; a schedule that cannot go on is a ValueError."""
    events: list[tuple[int, bool, tuple[int, ...], Step]] = []
    for turn, start in _starts(pipeline).items():
        stage, action = turn
        # At one time messages go first: a stage takes before it works, and gives when it has.
        events += [(start, False, one.ranks, one) for one in _messages(pipeline, turn)]
        events.append((start, True, (stage,), action))
    steps: dict[int, list[Step]] = {stage: [] for stage in range(pipeline.count)}
    for _, _, participants, step in sorted(events, key=lambda event: event[:2]):
        for participant in participants:
            steps[participant].append(step)
    for key, participants in pipeline.shared:
        for participant in participants:
            steps[participant].append(total(participants, key))
    return steps


def on_mesh(
    pipelines: Sequence[PipelineSpec], mesh: shape.Mesh, *, trains: bool
) -> dict[int, list[Step]]:
    """Give the list of each rank of a mesh whose other axes repeat the pipeline.

    Args:
        pipelines: of each place along the data axis; they differ in their microbatches only.
        trains: whether the sums that end a step follow.
    """
    counts = {pipeline.count for pipeline in pipelines}
    if counts != {mesh.stage}:
        raise ValueError(f"the mesh has {mesh.stage} stages, and the pipelines {counts}")
    stage_lists = [lists(pipeline) for pipeline in pipelines]
    rank_lists: dict[int, list[Step]] = {}
    for rank in range(mesh.size):
        place = mesh.coordinates(rank)
        along = mesh.group(rank, shape.Axis.STAGE).ranks
        steps = stage_lists[place[shape.Axis.DATA]][place[shape.Axis.STAGE]]
        rank_lists[rank] = [
            step
            if isinstance(step, schedule.Action)
            else dataclasses.replace(step, ranks=tuple(along[stage] for stage in step.ranks))
            for step in steps
        ]
        if pipelines[0].settles and place[shape.Axis.STAGE] == mesh.stage - 1:
            replicas = mesh.group(rank, shape.Axis.DATA).ranks
            forwards = [
                number
                for number, step in enumerate(steps)
                if isinstance(step, schedule.Action) and step.work is schedule.Pass.FORWARD
            ]
            at = 1 + max(forwards, default=-1)
            rank_lists[rank].insert(at, total(replicas, DENOMINATORS))
        if trains:
            rank_lists[rank] += _ending(mesh, rank)
    return rank_lists


def _ending(mesh: shape.Mesh, rank: int) -> Iterator[Step]:
    if mesh.only_data:
        yield total(range(mesh.size), ALL)
        return
    splits = [mesh.group(rank, axis) for axis in (shape.Axis.SPATIAL, shape.Axis.TENSOR)]
    split = [group for group in splits if len(group.ranks) > 1]
    for group in split:
        yield total(group.ranks, f"{PARTS} {group.axis}")
    yield total(mesh.group(rank, shape.Axis.DATA).ranks, GRADIENTS)
    yield total(range(mesh.size), LOSS)
    for group in split:
        yield total(group.ranks, f"{SQUARES} {group.axis}")
    yield total(range(mesh.size), NORM)


def _messages(pipeline: PipelineSpec, turn: Turn) -> Iterator[Rendezvous]:
    """What a stage takes from others for a turn."""
    stage, action = turn
    for one in pipeline.transfers:
        parcel = Parcel(action.work, one.tensor, action.microbatch)
        if action.work is schedule.Pass.FORWARD and one.target == stage:
            yield message(one.source, one.target, parcel)
        has_gradient = one.tensor not in pipeline.without_gradient
        if action.work is schedule.Pass.BACKWARD and one.source == stage and has_gradient:
            yield message(one.target, one.source, parcel)


def _starts(pipeline: PipelineSpec) -> dict[Turn, int]:
    """When each turn begins in a run in which all take equally long, and messages no time."""
    waiting: dict[int, list[schedule.Action]] = {stage: [] for stage in range(pipeline.count)}
    if pipeline.microbatches:
        for stage in waiting:
            in_order = pipeline.order(pipeline.count, pipeline.microbatches, stage)
            waiting[stage] = list(in_order)[::-1]
    starts: dict[Turn, int] = {}
    free = dict.fromkeys(waiting, 0)
    while any(waiting.values()):
        before = len(starts)
        for stage, actions in waiting.items():
            while actions:
                needs = _needs(pipeline, (stage, actions[-1]))
                if not all(turn in starts for turn in needs):
                    break
                start = max((free[stage], *(starts[turn] + 1 for turn in needs)))
                starts[stage, actions.pop()] = start
                free[stage] = start + 1
        if len(starts) == before:
            stuck = "; ".join(
                f"stage {stage}: {rest[-1]}" for stage, rest in waiting.items() if rest
            )
            raise ValueError(f"the schedule cannot go on ({stuck})")
    return starts


def _needs(pipeline: PipelineSpec, turn: Turn) -> Collection[Turn]:
    """The turns whose results a turn takes."""
    stage, action = turn
    needs = [(sent.ranks[0], action) for sent in _messages(pipeline, turn)]
    if action.work is schedule.Pass.BACKWARD:
        needs.append((stage, schedule.Action(schedule.Pass.FORWARD, action.microbatch)))
    return needs
