"""What one step of a model on a mesh costs when all cuts are known. Pure."""

import collections
import dataclasses
import functools
import itertools
from collections.abc import Callable, Mapping, Sequence

from tfparallel_trainer.contract import plan
from tfparallel_trainer.engines.split.pipeline import cutting, programs, schedule
from tfparallel_trainer.engines.split.planning import cost_tables, costs, hardware, search_space


def predict(
    known: cost_tables.Tables, path: Sequence[int], setting: search_space.Setting
) -> plan.Plan:
    """Run a step in thought, for a path as `cuts.best` gives it; reasons are left open."""
    model, cluster = known.subject.model, known.subject.cluster
    pairs = list(itertools.pairwise(path))
    parts = [known.nodes(*pair) for pair in pairs]
    order = tuple(itertools.chain.from_iterable(parts))
    ends = tuple(itertools.accumulate(map(len, parts[:-1])))
    ordered = dataclasses.replace(model, nodes=tuple(model.nodes[place] for place in order))
    model_stages = cutting.cut(ordered, ends)
    works = [dict(zip(schedule.Pass, known.seconds(part, setting), strict=True)) for part in parts]
    sent = itertools.chain.from_iterable(stage.sent for stage in model_stages)
    messages = {one: _message_seconds(known, setting, one) for one in sent}

    def seconds(stage: int, step: programs.Step) -> float:
        if isinstance(step, schedule.Action):
            return works[stage][step.work]
        if isinstance(step.operation, programs.Message):
            first, second = sorted(step.ranks)
            return messages[cutting.Transfer(first, second, step.operation.tensor)]
        return 0.0  # sums of shared weights are part of the update

    pipeline = programs.of_stages(
        ordered, model_stages, setting.microbatches, search_space.ORDERS[setting.order]
    )
    spans = timeline(programs.lists(pipeline), seconds)
    sums = known.sums(setting)
    ended = [
        max(one.end for one in spans if one.stage == stage) + float(sums[pair])
        for stage, pair in enumerate(pairs)
    ]
    stages = tuple(map(functools.partial(_stage, known, setting), model_stages, pairs))
    return plan.Plan(
        mesh=setting.axes,
        microbatches=setting.microbatches,
        schedule=setting.order,
        batch=setting.batch,
        memory=cluster.device.memory,
        measured=known.subject.measured,
        order=order,
        ends=ends,
        stages=stages,
        ranks=plan.ranks(setting.axes, cluster.devices),
        # No stage changes a weight before all know that all gradients are finite.
        step_seconds=max(ended) + max(float(known.applies[pair]) for pair in pairs),
        bubble=plan.bubble(spans, len(stages)),
        message_share=plan.message_share(spans, len(stages)),
        spans=spans,
        reasons=(),
        alternatives=(),
    )


def _stage(
    known: cost_tables.Tables,
    setting: search_space.Setting,
    stage: cutting.ModelStage,
    pair: tuple[int, int],
) -> plan.Stage:
    """Of a stage between two downsets."""
    part = known.nodes(*pair)
    sharded = zip(stage.nodes, (known.shardings[place] for place in part), strict=True)
    forward, backward = known.seconds(part, setting)
    message = sum(
        _message_seconds(known, setting, one) * known.directions(one.tensor)
        for one in (*stage.received, *stage.sent)
    )
    gradients = [one for one in stage.received if known.directions(one.tensor) > 1]
    sent = [known.message_bytes(one.tensor) for one in (*stage.sent, *gradients)]
    update = float(known.sums(setting)[pair]) + float(known.applies[pair])
    holds = known.memory(setting, stage.index)
    return plan.Stage(
        nodes=tuple(node.name for node in stage.nodes),
        split={
            node.name: sharding.name
            for node, sharding in sharded
            if sharding is not costs.REPLICATED
        },
        holds=plan.Bytes(**{name: round(float(one[pair])) for name, one in holds.items()}),
        held_microbatches=setting.held_microbatches(stage.index),
        forward_seconds=forward,
        backward_seconds=backward,
        message_seconds=message,
        update_seconds=update,
        sent_bytes=round(sum(sent) * setting.examples * setting.microbatches),
        busy_seconds=setting.microbatches * (forward + backward + message) + update,
    )


def _message_seconds(
    known: cost_tables.Tables, setting: search_space.Setting, one: cutting.Transfer
) -> float:
    cluster = known.subject.cluster
    link = hardware.link_between(setting.mesh, cluster, one.source, one.target)
    return link.message(known.message_bytes(one.tensor) * setting.examples)


def timeline(
    lists: Mapping[int, Sequence[programs.Step]], seconds: Callable[[int, programs.Step], float]
) -> tuple[plan.Span, ...]:
    """Let every stage do its list; a rendezvous takes all of its stages as long as the first."""
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


def _span(stage: int, step: programs.Step, begin: float, end: float) -> plan.Span:
    work, microbatch = plan.MESSAGE, -1
    if isinstance(step, schedule.Action):
        work, microbatch = step.work.value, step.microbatch
    elif isinstance(step.operation, programs.Message):
        microbatch = step.operation.microbatch
    return plan.Span(stage=stage, work=work, microbatch=microbatch, begin=begin, end=end)
