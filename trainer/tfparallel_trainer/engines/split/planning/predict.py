"""What one step of a model on a mesh costs when all cuts are known. Pure."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import communication, cutting, programs, schedule
from tfparallel_trainer.engines.split.planning import cost_tables, costs, hardware, search_space


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """A rank does a step of its list."""

    rank: int
    step: communication.Step
    begin: float
    end: float


def timeline(
    lists: Mapping[int, Sequence[communication.Step]],
    seconds: Callable[[int, communication.Step], float],
) -> tuple[Span, ...]:
    """Let every rank do its list; all ranks of a rendezvous are busy until it ends.

    Args:
        lists: ordered lists that come to their end, whatever ranks wait for.
        seconds: how long a rank takes for a step; for a rendezvous, its first rank is asked.
    """
    place = dict.fromkeys(lists, 0)
    clock = dict.fromkeys(lists, 0.0)
    at: dict[int, communication.Step] = {}
    ready = collections.deque(lists)
    spans: list[Span] = []
    while ready:
        rank = ready.popleft()
        if place[rank] == len(lists[rank]):
            continue
        step = at[rank] = lists[rank][place[rank]]
        participants = (rank,) if isinstance(step, communication.Compute) else step.ranks
        if any(at.get(participant) != step for participant in participants):
            continue
        begin = max(clock[participant] for participant in participants)
        end = begin + seconds(participants[0], step)
        for participant in participants:
            spans.append(Span(participant, step, begin, end))
            clock[participant] = end
            del at[participant]
            place[participant] += 1
            ready.append(participant)
    return tuple(sorted(spans, key=lambda span: (span.rank, span.begin, span.end)))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Of one step."""

    stages: tuple[plan.Stage, ...]
    order: tuple[int, ...]
    """As in a plan."""
    ends: tuple[int, ...]
    """As in a plan."""
    spans: tuple[plan.Span, ...]
    step_seconds: float

    @property
    def bubble(self) -> float:
        """As in a plan."""
        return plan.bubble(self.spans, len(self.stages))

    @property
    def message_share(self) -> float:
        """As in a plan."""
        return plan.message_share(self.spans, len(self.stages))

    @property
    def peak(self) -> int:
        """Bytes of the device that holds most."""
        return max(one.holds.peak for one in self.stages)


@dataclasses.dataclass(frozen=True, slots=True)
class _Seconds:
    """How long things take."""

    work: Mapping[int, Mapping[schedule.Work, float]]
    """Of a stage for one microbatch."""
    messages: Mapping[tuple[int, int, int], float]
    """By the stages at both ends, the lower one first, and the tensor."""

    def of(self, stage: int, step: communication.Step) -> float:
        if isinstance(step, communication.Compute):
            return self.work[stage][_action(step).work]
        if isinstance(step.tag, programs.Parcel):
            low, high = sorted(step.ranks)
            return self.messages[low, high, step.tag.tensor]
        return 0.0  # sums of shared weights are part of the update


def predict(
    model: graph.Graph,
    known: cost_tables.Tables,
    path: Sequence[int],
    setting: search_space.Setting,
    cluster: hardware.Cluster,
) -> Prediction:
    """Run a step in thought.

    Args:
        path: the places of the downsets between stages, the empty one and the whole included.
    """
    parts = [tuple(sorted(known.nodes(*pair))) for pair in itertools.pairwise(path)]
    order = tuple(itertools.chain.from_iterable(parts))
    ends = tuple(itertools.accumulate(map(len, parts[:-1])))
    ordered = dataclasses.replace(model, nodes=tuple(model.nodes[place] for place in order))
    model_stages = cutting.cut(ordered, ends)
    seconds = _seconds(known, model_stages, parts, setting, cluster)
    pipeline = programs.of_stages(
        ordered, model_stages, setting.microbatches, search_space.ORDERS[setting.order]
    )
    spans = timeline(programs.lists(pipeline), seconds.of)
    sums, applies = known.sums(setting, cluster), known.applies(cluster)
    summing = [float(sums[pair]) for pair in itertools.pairwise(path)]
    applying = [float(applies[pair]) for pair in itertools.pairwise(path)]
    updates = [sum(pair) for pair in zip(summing, applying, strict=True)]
    holds = [
        _bytes(known.memory(setting, index), pair)
        for index, pair in enumerate(itertools.pairwise(path))
    ]
    described = tuple(
        _stage(
            model, known, part, setting, seconds, model_stages[index], holds[index], updates[index]
        )
        for index, part in enumerate(parts)
    )
    ended = [
        max(one.end for one in spans if one.rank == stage) for stage in range(len(model_stages))
    ]
    return Prediction(
        stages=described,
        order=order,
        ends=ends,
        spans=tuple(_span(one) for one in spans),
        # No stage changes a weight before all know that all gradients are finite.
        step_seconds=max(end + sum_seconds for end, sum_seconds in zip(ended, summing, strict=True))
        + max(applying),
    )


def _seconds(
    known: cost_tables.Tables,
    model_stages: Sequence[cutting.Stage],
    parts: Sequence[Sequence[int]],
    setting: search_space.Setting,
    cluster: hardware.Cluster,
) -> _Seconds:
    work = {}
    for index, part in enumerate(parts):
        forward, backward = known.seconds(part, setting, cluster)
        work[index] = {schedule.Work.FORWARD: forward, schedule.Work.BACKWARD: backward}
    messages = {}
    for one in itertools.chain.from_iterable(stage.sent for stage in model_stages):
        link = hardware.link_between(setting.mesh, cluster, one.source, one.target)
        size = known.message_bytes(one.tensor) * setting.examples
        messages[one.source, one.target, one.tensor] = link.message(size)
    return _Seconds(work, messages)


def _stage(
    model: graph.Graph,
    known: cost_tables.Tables,
    part: Sequence[int],
    setting: search_space.Setting,
    seconds: _Seconds,
    stage: cutting.Stage,
    holds: plan.Bytes,
    update: float,
) -> plan.Stage:
    work = seconds.work[stage.index]
    turns = [(one, known.directions(one.tensor)) for one in (*stage.received, *stage.sent)]
    message = sum(
        seconds.messages[one.source, one.target, one.tensor] * count for one, count in turns
    )
    outward = sum(known.message_bytes(one.tensor) for one in stage.sent)
    back = sum(
        known.message_bytes(one.tensor)
        for one in stage.received
        if known.directions(one.tensor) > 1
    )
    node_shardings = {place: known.shardings[place] for place in part}
    return plan.Stage(
        nodes=tuple(model.nodes[place].name for place in part),
        split={
            model.nodes[place].name: sharding.name
            for place, sharding in node_shardings.items()
            if sharding is not costs.REPLICATED
        },
        holds=holds,
        held_microbatches=setting.held_microbatches(stage.index),
        forward_seconds=work[schedule.Work.FORWARD],
        backward_seconds=work[schedule.Work.BACKWARD],
        message_seconds=message,
        update_seconds=update,
        sent_bytes=round((outward + back) * setting.examples * setting.microbatches),
        busy_seconds=setting.microbatches * (sum(work.values()) + message) + update,
    )


def _bytes(matrices: cost_tables.Bytes, pair: tuple[int, int]) -> plan.Bytes:
    return plan.Bytes(
        **{
            field.name: round(float(getattr(matrices, field.name)[pair]))
            for field in dataclasses.fields(matrices)
        }
    )


def _span(span: Span) -> plan.Span:
    step = span.step
    if isinstance(step, communication.Compute):
        action = _action(step)
        work, microbatch = action.work.value, action.microbatch
    else:
        work = plan.MESSAGE
        microbatch = step.tag.microbatch if isinstance(step.tag, programs.Parcel) else -1
    return plan.Span(
        stage=span.rank, work=work, microbatch=microbatch, begin=span.begin, end=span.end
    )


def _action(step: communication.Compute) -> schedule.Action:
    if not isinstance(step.what, schedule.Action):
        raise AssertionError("programs let stages do nothing else")
    return step.what
