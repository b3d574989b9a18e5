"""Reports the part of the model on each device to the operator: bounded in size, pure."""

import dataclasses
from collections.abc import Sequence

from tfparallel_trainer import tasks
from tfparallel_trainer.comms import shape
from tfparallel_trainer.contract import job_file, limits, plain_text, progress
from tfparallel_trainer.contract.plan import Plan
from tfparallel_trainer.engines.split.model import graph
from tfparallel_trainer.engines.split.pipeline import cutting

_TO = " to "


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """The devices of the ranks of a mesh."""

    mesh: shape.MeshShape
    cluster: tasks.Cluster
    kind: str
    """The kind of the devices: GPU or CPU."""

    def device(self, rank: int) -> str:
        """Name the device of a rank, such as worker-1/GPU:0."""
        process, number = divmod(rank, self.mesh.size // len(self.cluster.tasks))
        return f"{self.cluster.tasks[process].name}/{self.kind}:{number}"


def describe(
    mesh: job_file.Mesh,
    devices: Place,
    model_stages: Sequence[cutting.ModelStage],
    parameter_bytes: Sequence[int],
    busy_seconds: Sequence[float] | None = None,
    expected: Plan | None = None,
) -> progress.Placement:
    """Describe where the parts of a model are.

    Args:
        parameter_bytes: for each stage, the bytes of weights on the device that has most of them.
        busy_seconds: for each stage, the seconds of a step in which it computes, if measured.
        expected: what the planner expects of these stages; None when it did not cut them.
    """
    planned = None  # seconds of a step in which each stage is expected to compute
    if expected is not None:
        of_microbatch = [
            stage.forward_seconds + stage.backward_seconds for stage in expected.stages
        ]
        planned = [expected.microbatches * seconds for seconds in of_microbatch]
    stages = [devices.mesh.coordinates(rank)[shape.Axis.STAGE] for rank in range(devices.mesh.size)]
    placements = []
    for stage in model_stages[: limits.MAX_STAGES]:
        ranks = [rank for rank, index in enumerate(stages) if index == stage.index]
        calls = (node for node in stage.nodes if node.kind is graph.NodeKind.LAYER)
        names = list(dict.fromkeys(node.name.partition("#")[0] for node in calls))
        shown = ranks[: limits.MAX_STAGE_DEVICES]
        placements.append(
            progress.StagePlacement(
                stage=stage.index,
                devices=tuple(
                    limits.printable(devices.device(rank), limits.MAX_NAME_LETTERS)
                    for rank in shown
                ),
                device_count=len(ranks),
                layers=_ends(names),
                layer_count=len(names),
                parameter_bytes=min(parameter_bytes[stage.index], limits.MAX_COUNT),
                busy_seconds=_number(busy_seconds, stage.index),
                planned_seconds=_number(planned, stage.index),
            )
        )
    cuts = tuple(limits.printable(name, job_file.MAX_LAYER_LETTERS) for name in mesh.cuts)
    return progress.Placement(
        mesh=mesh.model_copy(update={"cuts": cuts}),
        stages=tuple(placements),
        reasons=() if expected is None else reasons(expected),
    )


def reasons(plan: Plan) -> tuple[str, ...]:
    """The reasons for a plan, as many as fit into a report."""
    shown = plan.reasons[: limits.MAX_REASONS]
    return tuple(limits.printable(reason, limits.MAX_REASON_LETTERS) for reason in shown)


def _number(seconds: Sequence[float] | None, stage: int) -> str | None:
    return None if seconds is None else progress.format_number(seconds[stage])


def _ends(names: Sequence[str]) -> str:
    """The first and the last name, each cut to fit."""
    if not names:
        return ""
    letters = (limits.MAX_LAYERS_LETTERS - len(_TO)) // 2
    shown = [plain_text.escape(name) for name in (names[0], names[-1])]
    ends = [name if len(name) <= letters else f"{name[: letters - 1]}…" for name in shown]
    return ends[0] if len(names) == 1 else _TO.join(ends)
