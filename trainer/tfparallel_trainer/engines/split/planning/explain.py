"""Why a plan is as it is, in sentences. Pure."""

from collections.abc import Iterator, Sequence

from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import plan, progress
from tfparallel_trainer.engines.split.pipeline import schedule
from tfparallel_trainer.engines.split.planning import predict, search_space

size = progress.format_bytes


def axes(mesh: shape.Mesh) -> plan.Axes:
    """The mesh as a plan tells it."""
    return plan.Axes(**{axis.value: mesh.degree(axis) for axis in shape.Axis})


def reasons(
    prediction: predict.Prediction,
    setting: search_space.Setting,
    others: Sequence[plan.Alternative],
) -> Iterator[str]:
    """What decides the time and the memory of a step, and what the next best would cost."""
    stages = len(prediction.stages)
    dearest = max(range(stages), key=lambda one: prediction.stages[one].busy_seconds)
    fullest = max(range(stages), key=lambda one: prediction.stages[one].holds.peak)
    share = prediction.stages[dearest].busy_seconds / prediction.step_seconds
    yield (
        f"Stage {dearest} sets the pace: it is busy for {share:.0%} of a step of "
        f"{prediction.step_seconds:.3g} s."
    )
    if stages > 1:
        ideal = schedule.bubble(stages, setting.microbatches)
        parts = (
            "one microbatch"
            if setting.microbatches == 1
            else f"{setting.microbatches} microbatches"
        )
        yield (
            f"Stages wait for {prediction.bubble:.0%} of the schedule, "
            f"{prediction.message_share:.0%} for messages; {stages} equal stages with "
            f"{parts} and no messages would wait for {ideal:.0%}."
        )
    yield f"The fullest device is one of stage {fullest}, with {size(prediction.peak)}."
    for other in others:
        if other.step_seconds is not None:
            more = round(other.step_seconds / prediction.step_seconds - 1, 3)  # as it is shown
            than = "more" if more >= 0 else "less, but divides the weights less evenly"
            yield (
                f"The next best ({other.mesh}, microbatches {other.microbatches}: {other.what}) "
                f"takes {other.step_seconds:.3g} s, {abs(more):.1%} {than}."
            )
            return


def difference(prediction: predict.Prediction, other: predict.Prediction) -> str:
    """How another cut of the same mesh differs: the first node that changes its stage."""
    places = {name: index for index, one in enumerate(other.stages) for name in one.nodes}
    for index, one in enumerate(prediction.stages):
        for name in one.nodes:
            if places[name] != index:
                return f"{name} in stage {places[name]} instead of {index}"
    return "the same cut"


def too_many_stages(asked: int, most: int, count: int, why: str) -> str:
    """Say that a model of so many calls cannot be cut into so many stages."""
    reason = f"the model cannot be cut into more than {most} ({why})"
    if most == count:
        reason = f"the model makes only {count} calls of layers and operations"
    return f"mesh.stage is {asked}, but {reason}: give at most {most}."


def excess(
    prediction: predict.Prediction, setting: search_space.Setting, tried: int, limit: int
) -> str:
    """Why not even the cut that fits least badly does, and by how many bytes of a device."""
    index = max(range(len(prediction.stages)), key=lambda one: prediction.stages[one].holds.peak)
    stage = prediction.stages[index]
    holds = stage.holds
    last = "" if len(stage.nodes) == 1 else f" … {stage.nodes[-1]}"
    if holds.update:
        others, remedies = f"the optimizer's update {size(holds.update)}", "or more devices"
    else:
        others = f"activations {size(holds.activations)}, the widest layer {size(holds.working)}"
        remedies = "more devices, a smaller batch or more microbatches"
    return (
        f"The model does not fit {setting.mesh.size} devices with {size(limit)} each"
        f"{f' in any of {tried} ways' if tried > 1 else ''}. At best ({axes(setting.mesh)}, "
        f"microbatches {setting.microbatches}) a device of stage {index} ({stage.nodes[0]}{last}) "
        f"needs {size(holds.peak)}, {size(holds.peak - limit)} too much: parameters "
        f"{size(holds.parameters)}, gradients {size(holds.gradients)}, slots {size(holds.slots)}, "
        f"{others}. Give each device {size(holds.peak)}, {remedies}."
    )
