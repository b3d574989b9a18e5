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
    tables: cost_tables.Tables, path: Sequence[int], setting: search_space.Setting
) -> plan.Plan:
    """Run a step in thought, for a path as `cuts.best` gives it; reasons are left open."""
    model, cluster = tables.subject.model, tables.subject.cluster
    pairs = list(itertools.pairwise(path))
    parts = [tables.nodes(*pair) for pair in pairs]
    order = tuple(itertools.chain.from_iterable(parts))
    ends = tuple(itertools.accumulate(map(len, parts[:-1])))
    ordered = dataclasses.replace(model, nodes=tuple(model.nodes[index] for index in order))
    model_stages = cutting.cut(ordered, ends)
    works = [
        dict(zip(schedule.Pass, tables.seconds(part, setting, stage), strict=True))
        for stage, part in enumerate(parts)
    ]
    sent = itertools.chain.from_iterable(stage.sent for stage in model_stages)
    messages = {transfer: _message_seconds(tables, setting, transfer) for transfer in sent}

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
    sums, applies = tables.sums(setting), tables.applies(setting)
    ended = [
        max(span.end for span in spans if span.stage == stage) + float(sums[pair])
        for stage, pair in enumerate(pairs)
    ]
    stages = tuple(map(functools.partial(_stage, tables, setting), model_stages, pairs))
    return plan.Plan(
        mesh=setting.axes,
        microbatches=setting.microbatches,
        schedule=setting.order,
        shard_optimizer=setting.shards_optimizer,
        recompute=setting.recomputes,
        batch=setting.batch,
        memory=cluster.device.memory,
        measured=tables.subject.measured,
        device_type=cluster.device.type_name,
        order=order,
        ends=ends,
        stages=stages,
        ranks=plan.ranks(setting.axes, cluster.devices),
        # No stage changes a weight before all know that all gradients are finite.
        step_seconds=max(ended) + max(float(applies[pair]) for pair in pairs),
        bubble=plan.bubble(spans, len(stages)),
        message_share=plan.message_share(spans, len(stages)),
        spans=spans,
        reasons=(),
        alternatives=(),
    )


def _stage(
    tables: cost_tables.Tables,
    setting: search_space.Setting,
    stage: cutting.ModelStage,
    pair: tuple[int, int],
) -> plan.Stage:
    """Of a stage between two downsets."""
    part = tables.nodes(*pair)
    sharded = zip(stage.nodes, (tables.shardings[index] for index in part), strict=True)
    forward, backward = tables.seconds(part, setting, stage.index)
    message = sum(
        _message_seconds(tables, setting, transfer) * tables.directions(transfer.tensor)
        for transfer in (*stage.received, *stage.sent)
    )
    gradients = [transfer for transfer in stage.received if tables.directions(transfer.tensor) > 1]
    sent = [tables.message_bytes(transfer.tensor) for transfer in (*stage.sent, *gradients)]
    update = float(tables.sums(setting)[pair]) + float(tables.applies(setting)[pair])
    holds = tables.memory(setting, stage.index)
    return plan.Stage(
        nodes=tuple(node.name for node in stage.nodes),
        split={
            node.name: sharding.name
            for node, sharding in sharded
            if sharding is not costs.REPLICATED
        },
        holds=plan.Bytes(
            **{name: round(float(bytes_by_stage[pair])) for name, bytes_by_stage in holds.items()}
        ),
        held_microbatches=setting.held_microbatches(stage.index),
        forward_seconds=forward,
        backward_seconds=backward,
        message_seconds=message,
        update_seconds=update,
        sent_bytes=round(sum(sent) * setting.examples * setting.microbatches),
        busy_seconds=setting.microbatches * (forward + backward + message) + update,
    )


def _message_seconds(
    tables: cost_tables.Tables, setting: search_space.Setting, transfer: cutting.Transfer
) -> float:
    cluster = tables.subject.cluster
    link = hardware.link_between(setting.mesh, cluster, transfer.source, transfer.target)
    return link.message(tables.message_bytes(transfer.tensor) * setting.examples)


def timeline(
    lists: Mapping[int, Sequence[programs.Step]], seconds: Callable[[int, programs.Step], float]
) -> tuple[plan.Span, ...]:
    """Let every stage do its list; a rendezvous takes all of its stages as long as the first."""
    position = dict.fromkeys(lists, 0)
    clock = dict.fromkeys(lists, 0.0)
    at: dict[int, programs.Step] = {}
    ready = collections.deque(lists)
    spans: list[plan.Span] = []
    while ready:
        stage = ready.popleft()
        if position[stage] == len(lists[stage]):
            continue
        step = at[stage] = lists[stage][position[stage]]
        participants = (stage,) if isinstance(step, schedule.Action) else step.ranks
        if any(at.get(participant) != step for participant in participants):
            continue
        begin = max(clock[participant] for participant in participants)
        end = begin + seconds(participants[0], step)
        for participant in participants:
            spans.append(_span(participant, step, begin, end))
            clock[participant] = end
            del at[participant]
            position[participant] += 1
            ready.append(participant)
    return tuple(sorted(spans, key=lambda span: (span.stage, span.begin, span.end)))


def _span(stage: int, step: programs.Step, begin: float, end: float) -> plan.Span:
    work, microbatch = plan.MESSAGE, -1
    if isinstance(step, schedule.Action):
        work, microbatch = step.work.value, step.microbatch
    elif isinstance(step.operation, programs.Message):
        microbatch = step.operation.microbatch
    return plan.Span(stage=stage, work=work, microbatch=microbatch, begin=begin, end=end)
