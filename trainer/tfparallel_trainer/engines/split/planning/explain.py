"""Why a plan is as it is, in sentences. Pure."""

import collections
from collections.abc import Iterator, Sequence

from tfparallel_trainer.contract import limits, plan, progress
from tfparallel_trainer.contract.gpu_types import DEVICE_TYPES
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning.search_space import describe

_STATE_COPIES = 2
"""Files of an agent for one state, which take turns."""

size = progress.format_bytes
time = progress.format_seconds


def reasons(best: plan.Plan, others: Sequence[plan.Alternative]) -> Iterator[str]:
    """What decides the time and the memory of a step, and what the next best would cost."""
    stages = len(best.stages)
    dearest = max(range(stages), key=lambda stage_index: best.stages[stage_index].busy_seconds)
    share = best.stages[dearest].busy_seconds / best.step_seconds
    yield (
        f"Stage {dearest} sets the pace: it is busy for {share:.0%} of a step of "
        f"{time(best.step_seconds)}."
    )
    if stages > 1:
        count = best.microbatches
        parts = "one microbatch" if count == 1 else f"{count} microbatches"
        yield (
            f"Stages wait for {best.bubble:.0%} of the schedule, {best.message_share:.0%} for "
            f"messages; {stages} equal stages with {parts} and no messages would wait for "
            f"{schedule.bubble(stages, count):.0%}."
        )
    index = fullest(best)
    yield (
        f"The fullest device is one of stage {index}, with {size(best.stages[index].holds.peak)}."
    )
    for other in others:
        if other.step_seconds is not None:
            more = round(other.step_seconds / best.step_seconds - 1, 3)  # as it is shown
            than = "more" if more > 0 else "less, but divides the weights less evenly"
            of_it = f"{time(other.step_seconds)}, {abs(more):.1%} {than}" if more else "as long"
            yield (
                f"The next best ({other.mesh}, microbatches {other.microbatches}: {other.what}) "
                f"takes {of_it}."
            )
            return


def sharing(lacking: float | None) -> str:
    """Why replicas share the optimizer's state: a device lacks bytes without that, or it is faster.

    Args:
        lacking: the bytes.
    """
    why = "because a step is shorter then"
    if lacking is not None:
        why = f"because a device lacks {size(lacking)} without that"
    return f"The replicas share the optimizer's state (shardOptimizer), {why}."


def recomputing(lacking: float | None) -> str:
    """Why backward passes compute activations again: a device lacks bytes without that.

    Args:
        lacking: the bytes; None: another plan would be longer.
    """
    why = "because a step is shorter than what else fits"
    if lacking is not None:
        why = f"because a device lacks {size(lacking)} without that"
    return f"Backward passes compute activations again (recompute), {why}."


def copying(best: plan.Plan, requested: int | None) -> str:
    """What copies of the state take in a pod's memory, and what the pod has to request for them.

    Args:
        best: the plan.
        requested: bytes that a pod requests; None: unknown.
    """
    tensors, state = collections.Counter[int](), collections.Counter[int]()
    parts = set()
    for rank in best.ranks:
        holds = best.stages[rank.stage].holds
        tensors[rank.process] += holds.peak
        part = (rank.process, rank.stage, rank.tensor, rank.data * best.shard_optimizer)
        if part not in parts:  # a process copies what several of its ranks hold once
            state[rank.process] += holds.parameters + holds.slots
        parts.add(part)
    copies, whose = collections.Counter[int](), "its state"
    for process in state:
        others = [state[other] for other in state if other != process]
        copies[process] = _STATE_COPIES * (state[process] + max(others, default=0))
    if len(state) > 1:
        whose += " and two of its partner's"
    most = f"up to {size(max(copies.values()))}"
    what = f"With trainer.checkpoint, a pod's agent keeps two copies of {whose} in memory, {most}"
    if best.device_type is None:
        copies += tensors
        what += f" ({size(max(copies.values()))} with the tensors)"
    needed = max(copies.values())
    if requested is not None and requested < needed:
        return f"{what}. resources.requests.memory is {size(requested)}: raise it."
    return f"{what}. Count them, and TensorFlow itself, in resources.requests.memory."


def fullest(best: plan.Plan) -> int:
    """The stage whose devices hold most."""
    return max(range(len(best.stages)), key=lambda stage_index: best.stages[stage_index].holds.peak)


def difference(best: plan.Plan, other: plan.Plan) -> str:
    """How another plan differs; of another cut, the first node that changes its stage."""
    if other.mesh != best.mesh:
        return "another mesh"
    if other.microbatches != best.microbatches:
        return "other microbatches"
    if other.shard_optimizer != best.shard_optimizer:
        return f"with{'' if other.shard_optimizer else 'out'} shardOptimizer"
    if other.recompute != best.recompute:
        return f"with{'' if other.recompute else 'out'} recompute"
    places = {name: index for index, stage in enumerate(other.stages) for name in stage.nodes}
    for index, stage in enumerate(best.stages):
        for name in stage.nodes:
            if places[name] != index:
                return f"{name} in stage {places[name]} instead of {index}"
    return "the same cut"


def too_many_stages(asked: int, most: int, count: int, why: str) -> str:
    """Say that a model of so many calls cannot be cut into so many stages."""
    reason = f"the model cannot be cut into more than {most} ({why})"
    if most == count:
        reason = f"the model makes only {count} calls of layers and operations"
    return f"mesh.stage is {asked}, but {reason}: give at most {most}."


def memory_plan(
    best: plan.Plan, limit: int, changes: Sequence[progress.FittingChange] = ()
) -> progress.MemoryPlan:
    """What the fullest device of a plan holds, next to the bytes that devices can hold.

    Args:
        limit: these bytes.
        changes: those with which the model fits, if it does not.
    """
    stage = fullest(best)
    peak = min(best.stages[stage].holds.peak, limits.MAX_COUNT)
    return progress.MemoryPlan(
        stage=stage,
        peak_bytes=peak,
        device_bytes=min(limit, limits.MAX_COUNT),
        larger_device=_find_larger(best.device_type, peak),
        changes=tuple(changes),
    )


def excess(roomiest: plan.Plan, tried: int, memory: progress.MemoryPlan) -> str:
    """Why not even the cut that fits least badly does, and what would make the model fit.

    Args:
        tried: the number of plans, of which none fits.
        memory: what the roomiest plan needs, and what would make it fit.
    """
    index, limit, count = memory.stage, memory.device_bytes, len(roomiest.ranks)
    stage = roomiest.stages[index]
    holds = stage.holds
    last = "" if len(stage.nodes) == 1 else f" … {stage.nodes[-1]}"
    if holds.update:
        others = f"the optimizer's update {size(holds.update)}"
    else:
        others = f"activations {size(holds.activations)}, working memory {size(holds.working)}"
    named = describe(
        roomiest.mesh,
        roomiest.microbatches,
        shards_optimizer=roomiest.shard_optimizer,
        recomputes=roomiest.recompute,
    )
    return (
        f"The model does not fit {count} device{'' if count == 1 else 's'} of {size(limit)}"
        f"{f' in any of {tried} ways' if tried > 1 else ''}. At best ({named}) a device of "
        f"stage {index} ({stage.nodes[0]}{last}) needs {size(holds.peak)}, "
        f"{size(holds.peak - limit)} too much: parameters "
        f"{size(holds.parameters)}, gradients {size(holds.gradients)}, slots {size(holds.slots)}, "
        f"{others}. {memory.remedy}"
    )


def _find_larger(device_type: str | None, peak: int) -> str | None:
    """Name the GPU with the least memory that is enough, where a plan is for GPUs."""
    if device_type is None:
        return None
    larger = (device.name for device in DEVICE_TYPES.values() if device.memory >= peak)
    return next(larger, None)
