"""`python -m benchmarks.pages.peers`: the trainer side by side with other frameworks.

It measures all competitors in turns and writes docs/benchmarks/peers.md, in some forty minutes.
With `--only TABLE` it renews one table. It installs PyTorch and JAX into environments of their own,
at the versions of `requirements/peers-*.in`.
"""

import argparse
import dataclasses
import datetime
import functools
import pathlib
import statistics
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence

from benchmarks import page as benchmarks_page
from benchmarks import processes
from benchmarks.peers import competitors, workloads
from benchmarks.peers.competitors import Competitor, RunTimes
from testing import pages

PAGE = processes.ROOT / "docs" / "benchmarks" / "peers.md"
MACHINE = "machine"
"""Names the block that says where all was measured."""


@dataclasses.dataclass(frozen=True, slots=True)
class Table:
    """Competitors that do the same work, ours first."""

    names: Sequence[str]
    """Of the models, one row each."""
    sides: Mapping[str, Competitor]
    """By the title of the column."""
    has_equal_batches: bool = True


_data = functools.partial(competitors.peer, count=2)
_TWO: Mapping[str, Competitor] = {
    "trainer": functools.partial(competitors.ours, count=2),
    "hand-written loop": functools.partial(_data, script="tensorflow_loop"),
    "`fit` of tf_keras": functools.partial(_data, script="tf_keras_fit"),
    "Keras on JAX": functools.partial(
        _data, script="keras_distributed_fit", arguments=("data", "auto"), framework="jax"
    ),
    "PyTorch DDP": functools.partial(_data, script="torch_data", framework="torch"),
}
_ONE: Mapping[str, Competitor] = {
    "trainer": competitors.ours,
    "Keras' `fit`": functools.partial(
        competitors.peer, script="keras_distributed_fit", arguments=("none", "auto")
    ),
    "with XLA": functools.partial(
        competitors.peer, script="keras_distributed_fit", arguments=("none", "yes")
    ),
    "Keras on JAX": functools.partial(
        competitors.peer,
        script="keras_distributed_fit",
        arguments=("none", "auto"),
        framework="jax",
    ),
    "PyTorch": functools.partial(competitors.peer, script="torch_data", framework="torch"),
}
_TENSOR: Mapping[str, Competitor] = {
    "trainer": functools.partial(competitors.ours, count=2, mesh={"tensor": 2}),
    "Keras on JAX, ModelParallel": functools.partial(
        _data, script="keras_distributed_fit", arguments=("model", "auto"), framework="jax"
    ),
    "PyTorch DTensor": functools.partial(_data, script="torch_tensor", framework="torch"),
}
_PIPELINE: Mapping[str, Competitor] = {
    "trainer": functools.partial(
        competitors.ours, count=2, mesh={"stage": 2, "microbatches": workloads.MICROBATCHES}
    ),
    "PyTorch, Schedule1F1B": functools.partial(
        _data, script="torch_pipeline", framework="torch", reporter=1
    ),
}
_SERVERS: Mapping[str, Competitor] = {
    "trainer": competitors.our_servers,
    "hand-written coordinator": competitors.coordinator,
}
_DATA_MODELS = ("cnn", "dense", "decoder", "embedding")


TABLES = {
    "two": Table(_DATA_MODELS, _TWO),
    "one": Table(_DATA_MODELS, _ONE),
    "tensor": Table(("decoder",), _TENSOR),
    "pipeline": Table(("stack",), _PIPELINE),
    "servers": Table(("cnn", "embedding"), _SERVERS, has_equal_batches=False),
}
START = "start"
"""Names the block of the starts of two processes."""
TOLERANCE = 2e-3
"""By how much the last losses of competitors may differ, relative to the loss."""


Samples = Mapping[str, Sequence[RunTimes]]
"""Of one model, by side."""


def measure(table: Table, repeats: int) -> dict[str, Samples]:
    """Run all sides of a table in turns; return their samples by model.

    Raises:
        ValueError: the last losses differ, so that the sides have not done the same work.
    """
    measured: dict[str, Samples] = {}
    for name in table.names:
        samples: dict[str, list[RunTimes]] = {title: [] for title in table.sides}
        with tempfile.TemporaryDirectory() as folder:
            competitors.prepare(name, pathlib.Path(folder))
            for _ in range(repeats):
                for title, side in table.sides.items():
                    samples[title].append(side(name, pathlib.Path(folder)))
                    print(name, title, samples[title][-1], flush=True)
        if table.has_equal_batches:
            check_losses(name, samples)
        measured[name] = samples
    return measured


def check_losses(name: str, samples: Samples) -> None:
    """Check that the sides have done the same work.

    Raises:
        ValueError: their last losses differ by more than the tolerance.
    """
    losses = {title: side[-1].loss for title, side in samples.items()}
    least, most = min(losses.values()), max(losses.values())
    if most - least > TOLERANCE * abs(least):
        raise ValueError(f"{name}: the sides do not train alike: {losses}")


def steps_table(measured: Mapping[str, Samples]) -> list[str]:
    """Milliseconds of a step, and the range of the sides' last losses."""
    rows = []
    for samples in measured.values():
        sides = [[1000 * times.step for times in side] for side in samples.values()]
        rows.append([*_cells(sides), _losses(samples)])
    return _table("step, ms", [*_titles(measured), "loss"], measured, rows)


def starts_table(measured: Mapping[str, Samples]) -> list[str]:
    """Seconds from the command to the end of the first step."""
    rows = [
        _cells([[times.start for times in side] for side in samples.values()])
        for samples in measured.values()
    ]
    return _table("start, s", _titles(measured), measured, rows)


def _table(
    corner: str,
    titles: Sequence[str],
    measured: Mapping[str, Samples],
    rows: Sequence[Sequence[str]],
) -> list[str]:
    lines = [f"| {corner} | {' | '.join(titles)} |", "|" + "---|" * (len(titles) + 1)]
    for name, cells in zip(measured, rows, strict=True):
        lines.append(f"| {workloads.MODELS[name].title} | {' | '.join(cells)} |")
    return lines


def _titles(measured: Mapping[str, Samples]) -> list[str]:
    return list(next(iter(measured.values())))


def _cells(sides: Sequence[Sequence[float]]) -> list[str]:
    """Median, least and most of each side, and how much the first one takes of the others' time."""
    ours = statistics.median(sides[0])
    ratios = ["", *(f" **{ours / statistics.median(side):.2f} x**" for side in sides[1:])]
    return [f"{_middle(side)}{ratio}" for side, ratio in zip(sides, ratios, strict=True)]


def _losses(samples: Samples) -> str:
    losses = [side[-1].loss for side in samples.values()]
    return f"{min(losses):.5f}…{max(losses):.5f}"


def _middle(values: Sequence[float]) -> str:
    least, mid, most = map(_rounded, (min(values), statistics.median(values), max(values)))
    return f"{mid} ({least}…{most})"


def _rounded(value: float) -> str:
    """Three digits that count, without an exponent."""
    return f"{float(f'{value:.3g}'):g}"


def _machine(repeats: int) -> list[str]:
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    pinned = [
        f"{name} {_pinned(file, name)}"
        for name, file in (("tf-keras", "keras2"), ("jax", "peers-jax"), ("torch", "peers-torch"))
    ]
    software = f"{benchmarks_page.machine()}, {', '.join(pinned)}"
    text = f"Last renewed on {today}, with {repeats} turns. The machine: {software}."
    return textwrap.wrap(text, 100)


def _pinned(file: str, name: str) -> str:
    """The version of a package in a file of requirements."""
    text = competitors.requirements(file).read_text(encoding="utf-8")
    return text.split(f"{name}==", 1)[1].split(" ", 1)[0]


def main(arguments: Sequence[str]) -> None:
    """Measure, and write the page."""
    parser = argparse.ArgumentParser(prog="peers", description=__doc__)
    parser.add_argument("--only", choices=TABLES, help="measure this table alone")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args(arguments)
    for name, table in TABLES.items():
        if options.only in (None, name):
            measured = measure(table, options.repeats)
            _write(name, steps_table(measured))
            if name == "two":
                _write(START, starts_table(measured))
            _write(MACHINE, _machine(options.repeats))


def _write(name: str, lines: Sequence[str]) -> None:
    text = PAGE.read_text(encoding="utf-8")
    content = "\n".join((*lines, ""))
    PAGE.write_text(pages.with_section(text, name, content), encoding="utf-8")
    print(content, flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
