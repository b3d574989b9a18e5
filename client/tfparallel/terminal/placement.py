"""Shows the placement of a split model."""

from collections.abc import Sequence

from rich import table as rich_table

from tfparallel_operator.api import job_status
from tfparallel_trainer.contract import progress


def headline(placement: job_status.PlacementStatus) -> str:
    """Return the mesh as one line; axes that divide nothing are left out."""
    mesh = placement.mesh
    axes = [f"{name} {degree}" for name, degree in mesh.axes.items() if degree > 1]
    parts = [f"mesh {' x '.join(axes) or 'of one device'}"]
    if mesh.microbatches > 1:
        parts.append(f"{mesh.microbatches} microbatches ({mesh.schedule.value})")
    return ", ".join(parts)


def table(placement: job_status.PlacementStatus) -> rich_table.Table:
    """Return the stages as a table, with the seconds that each computes in a step, if known.

    Each stage's share of the computation is next to the share that the planner expected.
    """
    timed = any(stage.busy_seconds is not None for stage in placement.stages)
    measured = shares([stage.busy_seconds for stage in placement.stages])
    planned = shares([stage.planned_seconds for stage in placement.stages])
    shown = rich_table.Table("Stage", "Devices", "Layers", "Weights a device")
    if timed:
        for name in ("Busy s a step", "Share", "Planned"):
            shown.add_column(name)
    for stage in placement.stages:
        more = stage.device_count - len(stage.devices)
        devices = ", ".join(stage.devices) + (f" and {more} more" if more else "")
        row = [str(stage.stage), devices, f"{stage.layers} ({stage.layer_count})"]
        row.append(progress.format_bytes(stage.parameter_bytes))
        if timed:
            row += [stage.busy_seconds or "", measured[stage.stage], planned[stage.stage]]
        shown.add_row(*row)
    more_stages = placement.mesh.stage - len(placement.stages)
    if more_stages > 0:
        shown.caption = f"and {more_stages} more stages"
    return shown


def shares(seconds: Sequence[str | None]) -> list[str]:
    """Write each number of seconds as a share of all; nothing where one is not known."""
    seconds_by_stage = [float(value) for value in seconds if value is not None]
    if len(seconds_by_stage) < len(seconds) or not sum(seconds_by_stage) > 0:
        return [""] * len(seconds)
    return [f"{value / sum(seconds_by_stage):.0%}" for value in seconds_by_stage]
