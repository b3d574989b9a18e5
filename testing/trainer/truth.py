"""The table of numerical truth: training on many ranks against a plain Keras loop in one process.

`python -m testing.trainer.truth` trains everything and writes its part of docs/truth.md.
`python -m testing.trainer.truth worker OUTPUT FLOATX CASE…` is one process of such a training.
"""

import argparse
import contextlib
import dataclasses
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import numpy as np

from testing.trainer import launch, reference
from testing.trainer.models import truth as models
from tfparallel_operator.local import ports
from tfparallel_trainer import user
from tfparallel_trainer.contract import environment
from tfparallel_trainer.data import feed, source
from tfparallel_trainer.mesh import devices, meeting, shape, tasks
from tfparallel_trainer.step import replica, state, train

STEPS = 30
BATCH = 16
SEED = 7
HEADING = "## Synchronous training"
PAGE = launch.REPOSITORY / "docs" / "truth.md"
COMMAND = "python -m testing.trainer.truth"
LIMITS = {"float64": 1e-10, "float32": 1e-3}
NORMALISED_LIMIT = 1e-8
_LIMIT_SECONDS = 900.0


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """A model, its data and an optimizer."""

    model: str
    also: str
    """What it brings into play besides."""
    optimizer: str
    build: Callable[[bool], Any]
    """Takes whether BatchNormalization is synchronised."""
    loss: Any
    data: Callable[[], Any]
    make_optimizer: functools.partial[Any]

    @property
    def name(self) -> str:
        """Tells it apart: model and optimizer."""
        return f"{self.model}, {self.optimizer}"

    @property
    def limit(self) -> float:
        """The largest difference of a weight in float64."""
        return NORMALISED_LIMIT if self.build is models.normalised else LIMITS["float64"]

    def functions(self, *, synchronized: bool) -> dict[str, Callable[..., Any]]:
        """What a user's module would have."""
        return {
            "build_model": lambda: self.build(synchronized),
            "compile_model": lambda model: model.compile(self.make_optimizer(), self.loss),
            "training_data": self.data,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """Processes, and devices of each."""

    processes: int
    devices: int

    def __str__(self) -> str:
        return f"{self.processes}x{self.devices}"


LAYOUTS = (Layout(1, 1), Layout(1, 2), Layout(2, 1), Layout(3, 1), Layout(2, 2))


def _cases() -> Iterator[Case]:
    for name, also, build, loss, data, sgd, adam in models.ROWS:
        momentum = functools.partial(keras.optimizers.SGD, 0.05, momentum=0.9, **sgd)
        yield Case(name, also, "SGD momentum", build, loss, data, momentum)
        yield Case(
            name,
            also,
            "Adam",
            build,
            loss,
            data,
            functools.partial(keras.optimizers.Adam, 0.01, **adam),
        )


CASES = tuple(_cases())


@contextlib.contextmanager
def precision(floatx: str) -> Iterator[None]:
    """Let all that is built in the body compute in a type."""
    before = keras.config.floatx()
    keras.utils.clear_session()
    keras.config.set_floatx(floatx)
    keras.config.set_dtype_policy(floatx)
    try:
        yield
    finally:
        keras.config.set_floatx(before)
        keras.config.set_dtype_policy(before)
        keras.utils.clear_session()


def expected(case: Case) -> list[Any]:
    """The weights that a plain Keras loop gives."""
    module = types.SimpleNamespace(**case.functions(synchronized=False))
    weights, _ = reference.train(module, STEPS, BATCH, SEED)
    return weights


def trained(
    case: Case, processes: tasks.Cluster, names: Sequence[str], generation: int
) -> tuple[list[Any], list[replica.Replica]]:
    """The weights that the ranks of all processes give; each mesh has a generation of its own."""
    made = user.Module(pathlib.Path(__file__), case.functions(synchronized=True))
    mesh = shape.Mesh(data=len(processes.tasks) * len(names), generation=generation)
    places = [processes.me * len(names) + place for place in range(len(names))]
    request = source.Request(
        seed=SEED,
        source_dir=pathlib.Path(),
        output_dir=pathlib.Path(),
        division=feed.Division(batch_size=BATCH, ranks=mesh.data, own=tuple(places)),
        endless_allowed=True,
    )
    given = source.training(made, request)
    replicas = []
    for rank, name in zip(places, names, strict=True):
        replica.forget_names()
        replicas.append(replica.build(made, mesh, rank, name, SEED, given.sample()))
    state.share(replicas, [0])
    step = train.TrainStep(made, replicas, given.spec)
    number = 0
    for epoch in range(STEPS):
        for batch in given.epoch(epoch, 0):
            if number < STEPS:
                step(number, batch, frozenset())
                number += 1
    return replicas[0].model.get_weights(), replicas


def difference(found: Sequence[Any], wanted: Sequence[Any], *, relative: bool) -> float:
    """The largest difference of a weight; relative to the largest weight if that is wanted."""
    pairs = list(zip(found, wanted, strict=True))
    largest = max(float(np.abs(one - other).max()) for one, other in pairs)
    scale = max(float(np.abs(other).max()) for _, other in pairs) if relative else 1.0
    return largest / scale


def together(layout: Layout, floatx: str, cases: Sequence[Case]) -> list[list[Any]]:
    """Train cases in processes of their own; gives the weights of each."""
    given = ports.allocate(layout.processes)
    members = {"worker": [f"{ports.HOST}:{port}" for port in given]}
    with tempfile.TemporaryDirectory() as folder:
        output = pathlib.Path(folder) / "weights.npz"
        numbers = [str(CASES.index(case)) for case in cases]
        command = [sys.executable, "-m", "testing.trainer.truth", "worker", str(output), floatx]
        running = [
            subprocess.Popen(
                [*command, *numbers],
                cwd=launch.REPOSITORY,
                env={
                    **environment_of(members, "worker", index),
                    environment.CPU_DEVICES: str(layout.devices),
                },
            )
            for index in range(layout.processes)
        ]
        try:
            codes = [process.wait(_LIMIT_SECONDS) for process in running]
        finally:
            for process in running:
                process.kill()
                process.wait()
        if any(codes):
            raise RuntimeError(f"the processes of {layout} ended with {codes}")
        with np.load(output) as saved:
            return [
                [saved[key] for key in saved.files if key.startswith(f"{number}/")]
                for number in numbers
            ]


def environment_of(members: dict[str, list[str]], role: str, index: int) -> dict[str, str]:
    """The environment of a member of a cluster."""
    config = {"cluster": members, "task": {"type": role, "index": index}}
    return {
        **os.environ,
        environment.TF_CONFIG: json.dumps(config),
        "CUDA_VISIBLE_DEVICES": "-1",
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_NUM_INTRAOP_THREADS": "1",
        "TF_NUM_INTEROP_THREADS": "2",
    }


def work(output: pathlib.Path, floatx: str, numbers: Sequence[int]) -> None:
    """Be one process: train cases with the others; the first one writes the weights."""
    processes = tasks.parse(os.environ[environment.TF_CONFIG])
    count = devices.prepare(int(os.environ[environment.CPU_DEVICES]), processes.alone)
    held: object = None
    if not processes.alone:
        held = meeting.join(processes, meeting.meet(processes, 120, print))
    names = devices.names(processes, count)
    weights: dict[str, Any] = {}
    replicas: list[replica.Replica] = []
    with precision(floatx):
        for generation, number in enumerate(numbers):
            found, replicas = trained(CASES[number], processes, names, generation)
            weights |= {f"{number}/{place:03}": array for place, array in enumerate(found)}
    if processes.is_chief:
        np.savez(output, **weights)
    state.Barrier(replicas)()
    del held
    os._exit(0)


Cells = dict[tuple[str, str, str], float]
"""The difference for each case, layout and type."""


def measure(layouts: Sequence[Layout], floatxs: Sequence[str], cases: Sequence[Case]) -> Cells:
    """Train everything, each layout in processes of its own."""
    cells: Cells = {}
    for floatx in floatxs:
        with precision(floatx):
            wanted = [expected(case) for case in cases]
        for layout in layouts:
            for case, one, other in zip(
                cases, together(layout, floatx, cases), wanted, strict=True
            ):
                cells[case.name, str(layout), floatx] = difference(
                    one, other, relative=floatx == "float32"
                )
    return cells


def section(cells: Cells) -> str:
    """Its part of the page."""
    head = " | ".join(str(layout) for layout in LAYOUTS)
    lines = [
        HEADING,
        "",
        f"Generated by `{COMMAND}`. Each cell compares the weights after {STEPS} steps with those",
        "of a plain Keras loop in one process over the same batches. The global batch has "
        f"{BATCH} of",
        f"{models.EXAMPLES} examples, so the last one of an epoch is smaller. First stands the "
        "largest difference",
        "of a weight in float64, then that in float32 relative to the largest weight. Columns are",
        "processes x devices of each: Mirrored has one process, MultiWorkerMirrored several.",
        "float64 decides: at most 1e-10, and 1e-8 with BatchNormalization; float32 shows rounding,",
        "and is at most 1e-3.",
        "",
        f"| model | optimizer | with | {head} |",
        "|---|---|---|" + "---|" * len(LAYOUTS),
    ]
    for case in CASES:
        pairs = [
            f"{cells[case.name, str(layout), 'float64']:.0e} / "
            f"{cells[case.name, str(layout), 'float32']:.0e}"
            for layout in LAYOUTS
        ]
        lines.append(f"| {case.model} | {case.optimizer} | {case.also} | {' | '.join(pairs)} |")
    return "\n".join(lines) + "\n"


def part(heading: str) -> str:
    """The part of the page below a heading of it."""
    _, found, below = PAGE.read_text(encoding="utf-8").partition(f"{heading}\n")
    return found + below.partition("\n## ")[0]


def write(heading: str, content: str) -> None:
    """Replace a part of the page, or add it."""
    page = PAGE.read_text(encoding="utf-8")
    if f"{heading}\n" not in page:
        PAGE.write_text(f"{page.rstrip()}\n\n{content}", encoding="utf-8")
        return
    PAGE.write_text(
        page.replace(part(heading).rstrip("\n"), content.rstrip("\n")), encoding="utf-8"
    )


def ended(beyond: Sequence[str]) -> int:
    """Tell what is beyond its limits, or that the page is written; gives the exit code."""
    print("\n".join(beyond) or f"wrote {PAGE}")
    return 1 if beyond else 0


def faults(cells: Cells) -> list[str]:
    """Cells beyond their limits."""
    limits = {case.name: {**LIMITS, "float64": case.limit} for case in CASES}
    return [
        f"{name} on {layout} in {floatx} differs by {value:.1e}"
        for (name, layout, floatx), value in cells.items()
        if not value <= limits[name][floatx]
    ]


def main(arguments: Sequence[str]) -> int:
    """Write the page, or be a worker."""
    parser = argparse.ArgumentParser(description="Train everything and write docs/truth.md.")
    modes = parser.add_subparsers(dest="mode")
    worker = modes.add_parser("worker", help="be one process of a training")
    worker.add_argument("output", type=pathlib.Path)
    worker.add_argument("floatx")
    worker.add_argument("cases", type=int, nargs="+")
    given = parser.parse_args(arguments)
    if given.mode == "worker":
        work(given.output, given.floatx, given.cases)
    cells = measure(LAYOUTS, tuple(LIMITS), CASES)
    write(HEADING, section(cells))
    return ended(faults(cells))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
