"""A plan as tables and a picture of text."""

from collections.abc import Iterator, Sequence

from rich import console as rich_console
from rich import table as rich_table

from tfparallel.terminal import display, job_tables
from tfparallel_trainer.contract import plan, progress

_WIDTH = 80
"""Most characters of a line of the schedule."""

_MESH_WIDTH = 19
"""Most letters of a mesh in a table of alternatives: names of layers need the room."""

_FORWARD = "0123456789"
_BACKWARD = "abcdefghij"
"""By the last digit of the microbatch's number."""


def headline(answer: plan.Plan) -> str:
    """What was chosen and how long a step takes."""
    how = "measured on this machine" if answer.measured else "estimated"
    if answer.device_type is not None:
        how = f"estimated for {answer.device_type}"
    chosen = {"shardOptimizer": answer.shard_optimizer, "recompute": answer.recompute}
    less_memory = "".join(f"{name} · " for name, is_chosen in chosen.items() if is_chosen)
    return (
        f"{answer.mesh} · microbatches {answer.microbatches} · {answer.schedule} · {less_memory}"
        f"a step of {answer.batch} examples {progress.format_seconds(answer.step_seconds)} ({how})"
        f" · waiting {answer.bubble:.0%}"
    )


def waiting(run: plan.Pipeline) -> str:
    """How much of the schedule stages wait, messages included, beside what was planned of it."""
    stages = run.placement.mesh.stage
    of_plan = "" if run.planned is None else f" (planned {run.planned.bubble:.0%})"
    lasts = (
        "" if run.step_seconds is None else f" · a step {progress.format_seconds(run.step_seconds)}"
    )
    return f"wait {plan.bubble(run.spans, stages):.0%} of the schedule{of_plan}{lasts}"


def show(answer: plan.Plan, out: rich_console.Console) -> None:
    """Print a plan so that it fits the console; sentences for a file are not wrapped."""

    def say(*lines: str) -> None:
        for line in lines:
            display.print_line(out, line)

    say(headline(answer), "")
    out.print(placement(answer), "", memory(answer))
    say(*updates(answer), "", *split(answer))
    say(*schedule(answer, min(_WIDTH, out.width)), "", *answer.reasons)
    if answer.alternatives:
        out.print("", alternatives(answer), "")


def placement(answer: plan.Plan) -> rich_table.Table:
    """A row for each device, which is told by its pod and its number there."""
    table = _table("rank", "pod", "place", "layers")
    for rank in answer.ranks:
        table.add_row(
            str(rank.rank),
            f"{rank.process}.{rank.device}",
            ", ".join(coordinates(answer.mesh, rank)) or "-",
            layers(answer.stages[rank.stage]),
        )
    return table


def memory(answer: plan.Plan) -> rich_table.Table:
    """A row for each stage: what each of its devices holds, and how long it works in a step."""
    sizes = ("parameters", "gradients", "slots", "activations", "working", "peak")
    table = _table("stage", right=(*sizes, "busy"))
    for index, stage in enumerate(answer.stages):
        amounts = (progress.format_bytes(getattr(stage.holds, name)) for name in sizes)
        table.add_row(str(index), *amounts, progress.format_seconds(stage.busy_seconds))
    return table


def updates(answer: plan.Plan) -> Iterator[str]:
    """The stages whose peak is more than the table adds up to."""
    stages = [str(index) for index, stage in enumerate(answer.stages) if stage.holds.update]
    if stages:
        where = ", ".join(stages)
        yield f"peak in the optimizer's update, which has memory of its own: stage {where}"


def coordinates(mesh: plan.Axes, rank: plan.Rank) -> Sequence[str]:
    """The place of a rank on every axis that has several."""
    degrees = mesh.model_dump()
    return [f"{name} {getattr(rank, name)}" for name, degree in degrees.items() if degree > 1]


def layers(stage: plan.Stage) -> str:
    """The first and the last layer of a stage, and how many there are."""
    nodes = stage.nodes
    if len(nodes) == 1:
        return nodes[0]
    return f"{nodes[0]} … {nodes[-1]} ({len(nodes)})"


def split(answer: plan.Plan) -> Iterator[str]:
    """How layers are divided among devices, a line for each way."""
    shardings: dict[str, list[str]] = {}
    for stage in answer.stages:
        for node, sharding in stage.split.items():
            shardings.setdefault(sharding, []).append(node)
    for sharding, nodes in shardings.items():
        shown = ", ".join(nodes[:8]) + (f" and {len(nodes) - 8} more" if len(nodes) > 8 else "")
        yield f"{sharding}: {shown}"


def schedule(answer: plan.Plan, width: int = _WIDTH) -> Iterator[str]:
    """A line for each stage: what it does over a step, as long as the line is wide."""
    end = max((span.end for span in answer.spans), default=0.0)
    steps = max(1, width - len(f"stage {len(answer.stages) - 1} ||"))
    for index in range(len(answer.stages)):
        spans = [span for span in answer.spans if span.stage == index]
        row = "".join(_character(spans, (column + 0.5) / steps * end) for column in range(steps))
        yield f"{f'stage {index}':<{width - steps - 2}}|{row}|"
    yield "digits: forward, letters: backward of a microbatch; -: messages; · waiting"


def alternatives(answer: plan.Plan) -> rich_table.Table:
    """What else could be done, and what it costs."""
    table = _table("mesh", "micro-\nbatches", "difference", right=("step", "peak"))
    table.columns[0].max_width = _MESH_WIDTH
    for alternative in answer.alternatives:
        table.add_row(
            str(alternative.mesh),
            str(alternative.microbatches),
            alternative.what,
            "-"
            if alternative.step_seconds is None
            else progress.format_seconds(alternative.step_seconds),
            progress.format_bytes(alternative.peak_bytes),
        )
    return table


def _table(*left: str, right: Sequence[str] = ()) -> rich_table.Table:
    """Return a table that breaks between words; columns on the right keep their width."""
    table = job_tables.plain_table()
    for name in (*left, *right):
        table.add_column(
            name.upper(),
            justify="right" if name in right else "left",
            overflow="ellipsis",
            no_wrap=name in right,
        )
    return table


def _character(spans: Sequence[plan.Span], moment: float) -> str:
    for span in spans:
        if span.begin <= moment < span.end:
            if span.work == plan.MESSAGE:
                return "-"
            letters = _FORWARD if span.work == "forward" else _BACKWARD
            return letters[span.microbatch % len(letters)]
    return "·"
