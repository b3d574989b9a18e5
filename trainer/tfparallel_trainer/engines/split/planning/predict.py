"""What one step of a model on a mesh costs when all cuts are known. Pure."""

import collections
import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence

from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule
from tfparallel_trainer.engines.split.planning import cost_tables, costs, hardware, search_space


def timeline(
    lists: Mapping[int, Sequence[programs.Step]],
    seconds: Callable[[int, programs.Step], float],
) -> tuple[plan.Span, ...]:
    """Let every stage do its list; all stages of a rendezvous are busy until it ends.

    It takes as long as its first stage says.
    """
    place = dict.fromkeys(lists, 0)
    clock = dict.fromkeys(lists, 0.0)
    at: dict[int, programs.Step] = {}
    ready = collections.deque(lists)
    spans: list[plan.Span] = []
    while ready:
        stage = ready.popleft()
        if place[stage] == len(lists[stage]):
            continue
        step = at[stage] = lists[stage][place[stage]]
        participants = (stage,) if isinstance(step, schedule.Action) else step.ranks
        if any(at.get(participant) != step for participant in participants):
            continue
        begin = max(clock[participant] for participant in participants)
        end = begin + seconds(participants[0], step)
        for participant in participants:
            spans.append(_span(participant, step, begin, end))
            clock[participant] = end
            del at[participant]
            place[participant] += 1
            ready.append(participant)
    return tuple(sorted(spans, key=lambda span: (span.stage, span.begin, span.end)))


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


class _Seconds:
    """How long things take."""

    def __init__(
        self,
        known: cost_tables.Tables,
        model_stages: Sequence[cutting.Stage],
        parts: Sequence[Sequence[int]],
        setting: search_space.Setting,
        cluster: hardware.Cluster,
    ) -> None:
        self.work = {}
        """Of a stage for one microbatch."""
        for index, part in enumerate(parts):
            forward, backward = known.seconds(part, setting, cluster)
            self.work[index] = {schedule.Work.FORWARD: forward, schedule.Work.BACKWARD: backward}
        self.messages = {}
        """By the stages at both ends, the lower one first, and the tensor."""
        for one in itertools.chain.from_iterable(stage.sent for stage in model_stages):
            link = hardware.link_between(setting.mesh, cluster, one.source, one.target)
            size = known.message_bytes(one.tensor) * setting.examples
            self.messages[one.source, one.target, one.tensor] = link.message(size)

    def of(self, stage: int, step: programs.Step) -> float:
        if isinstance(step, schedule.Action):
            return self.work[stage][step.work]
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
    """Run a step in thought, for a path as `cuts.best` gives it."""
    pairs = list(itertools.pairwise(path))
    parts = [tuple(sorted(known.nodes(*pair))) for pair in pairs]
    order = tuple(itertools.chain.from_iterable(parts))
    ends = tuple(itertools.accumulate(map(len, parts[:-1])))
    ordered = dataclasses.replace(model, nodes=tuple(model.nodes[place] for place in order))
    model_stages = cutting.cut(ordered, ends)
    seconds = _Seconds(known, model_stages, parts, setting, cluster)
    pipeline = programs.of_stages(
        ordered, model_stages, setting.microbatches, search_space.ORDERS[setting.order]
    )
    spans = timeline(programs.lists(pipeline), seconds.of)
    sums, applies = known.sums(setting, cluster), known.applies(cluster)
    summing = [float(sums[pair]) for pair in pairs]
    applying = [float(applies[pair]) for pair in pairs]
    ended = [max(one.end for one in spans if one.stage == stage) for stage in range(len(pairs))]
    stages = []
    for stage, pair in zip(model_stages, pairs, strict=True):
        update = summing[stage.index] + applying[stage.index]
        memory = known.memory(setting, stage.index)
        holds = plan.Bytes(**{name: round(float(one[pair])) for name, one in memory.items()})
        stages.append(_stage(known, parts[stage.index], setting, seconds, stage, holds, update))
    return Prediction(
        stages=tuple(stages),
        order=order,
        ends=ends,
        spans=spans,
        # No stage changes a weight before all know that all gradients are finite.
        step_seconds=max(end + sum_seconds for end, sum_seconds in zip(ended, summing, strict=True))
        + max(applying),
    )


def _stage(
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
    sent = [one.tensor for one in stage.sent]
    sent += [one.tensor for one in stage.received if known.directions(one.tensor) > 1]
    shardings = [known.shardings[place] for place in part]
    return plan.Stage(
        nodes=tuple(node.name for node in stage.nodes),
        split={
            node.name: sharding.name
            for node, sharding in zip(stage.nodes, shardings, strict=True)
            if sharding is not costs.REPLICATED
        },
        holds=holds,
        held_microbatches=setting.held_microbatches(stage.index),
        forward_seconds=work[schedule.Work.FORWARD],
        backward_seconds=work[schedule.Work.BACKWARD],
        message_seconds=message,
        update_seconds=update,
        sent_bytes=round(
            sum(map(known.message_bytes, sent)) * setting.examples * setting.microbatches
        ),
        busy_seconds=setting.microbatches * (sum(work.values()) + message) + update,
    )


def _span(stage: int, step: programs.Step, begin: float, end: float) -> plan.Span:
    work, microbatch = plan.MESSAGE, -1
    if isinstance(step, schedule.Action):
        work, microbatch = step.work.value, step.microbatch
    elif isinstance(step.tag, programs.Parcel):
        microbatch = step.tag.microbatch
    return plan.Span(stage=stage, work=work, microbatch=microbatch, begin=begin, end=end)
