"""A plan as tables and a picture of text."""

from collections.abc import Iterator, Sequence

from rich import box
from rich import table as rich_table

from tfparallel_trainer.contract import pipeline, plan

_WIDTH = 72
"""Characters of a step."""

_FORWARD = "0123456789"
_BACKWARD = "abcdefghij"
"""By the last digit of the microbatch's number."""


def size(count: float) -> str:
    """Bytes for people."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= factor:
            return f"{count / factor:.1f} {unit}"
    return f"{count:.0f} B"


def seconds(count: float) -> str:
    """A time for people."""
    if count < 1e-3:
        return f"{count * 1e6:.0f} µs"
    return f"{count * 1e3:.3g} ms" if count < 1 else f"{count:.3g} s"


def headline(made: plan.Plan) -> str:
    """What was chosen and how long a step takes."""
    how = "measured on this machine" if made.measured else "estimated"
    return (
        f"{made.mesh} · microbatches {made.microbatches} · {made.schedule} · a step of "
        f"{made.batch} examples {seconds(made.step_seconds)} ({how}) · waiting {made.bubble:.0%}"
    )


def waiting(run: pipeline.Pipeline) -> str:
    """How much of the schedule stages wait, messages included, beside what was planned of it."""
    stages = run.placement.mesh.stage
    of_plan = "" if run.planned is None else f" (planned {_waiting(run.planned.spans, stages):.0%})"
    lasts = "" if run.step_seconds is None else f" · a step {seconds(run.step_seconds)}"
    return f"wait {_waiting(run.spans, stages):.0%} of the schedule{of_plan}{lasts}"


def placement(made: plan.Plan) -> rich_table.Table:
    """A row for each device, which is told by its pod and its number there."""
    table = rich_table.Table(box=box.SIMPLE_HEAD)
    for name in ("rank", "pod", "place"):
        table.add_column(name)
    table.add_column("layers", overflow="fold", max_width=40)
    for name in ("parameters", "gradients", "slots", "activations", "peak", "busy"):
        table.add_column(name, justify="right")
    for rank in made.ranks:
        stage = made.stages[rank.stage]
        holds = stage.holds
        table.add_row(
            str(rank.rank),
            f"{rank.process}.{rank.device}",
            _place(made.mesh, rank),
            layers(stage),
            *(size(one) for one in (holds.parameters, holds.gradients, holds.slots)),
            size(holds.activations),
            size(holds.peak),
            seconds(stage.busy_seconds),
        )
    return table


def layers(stage: plan.Stage) -> str:
    """The first and the last layer of a stage, and how many there are."""
    nodes = stage.nodes
    if len(nodes) == 1:
        return nodes[0]
    return f"{nodes[0]} … {nodes[-1]} ({len(nodes)})"


def split(made: plan.Plan) -> Iterator[str]:
    """How layers are divided among devices, a line for each way."""
    ways: dict[str, list[str]] = {}
    for stage in made.stages:
        for node, way in stage.split.items():
            ways.setdefault(way, []).append(node)
    for way, nodes in ways.items():
        shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
        yield f"{way}: {shown}"


def schedule(made: plan.Plan) -> Iterator[str]:
    """A line for each stage: what it does over a step, as long as the step is wide."""
    end = max((span.end for span in made.spans), default=0.0)
    for index in range(len(made.stages)):
        own = [span for span in made.spans if span.stage == index]
        row = "".join(_character(own, (place + 0.5) / _WIDTH * end) for place in range(_WIDTH))
        yield f"stage {index} |{row}|"
    yield "digits: forward, letters: backward of a microbatch; -: messages; · waiting"


def alternatives(made: plan.Plan) -> rich_table.Table:
    """What else could be done, and what it costs."""
    table = rich_table.Table(box=box.SIMPLE_HEAD)
    for name in ("mesh", "microbatches", "difference"):
        table.add_column(name, overflow="fold")
    for name in ("a step", "fullest device"):
        table.add_column(name, justify="right")
    for one in made.alternatives:
        table.add_row(
            str(one.mesh),
            str(one.microbatches),
            one.what,
            "-" if one.step_seconds is None else seconds(one.step_seconds),
            size(one.peak_bytes),
        )
    return table


def _place(mesh: plan.Axes, rank: plan.Rank) -> str:
    own = {name: getattr(rank, name) for name, degree in mesh.model_dump().items() if degree > 1}
    return ", ".join(f"{name} {place}" for name, place in own.items()) or "-"


def _waiting(spans: Sequence[plan.Span], stages: int) -> float:
    """The share of the time from the first work to the last in which stages do none."""
    works = [span for span in spans if span.work != "message"]
    begin, end = min(span.begin for span in works), max(span.end for span in works)
    return 1 - sum(span.end - span.begin for span in works) / (stages * (end - begin))


def _character(spans: Sequence[plan.Span], moment: float) -> str:
    for span in spans:
        if span.begin <= moment < span.end:
            if span.work == "message":
                return "-"
            letters = _FORWARD if span.work == "forward" else _BACKWARD
            return letters[span.microbatch % len(letters)]
    return "·"
